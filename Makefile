# make demo | test | check | test-versions | soak | bench | peers | docs | lint: each sets up .venv first (Python 3.11+, Java 17+).
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-failed check test-versions soak bench peers docs lint kernels spark-classes compiled-tests dist version kafka-jars table-jars store-servers clean
PYTHON_BIN := .venv/bin/python

# The set-up looks for Python and Java as the user has them, so it gets these two as they were.
setup dist: export PATH := $(PATH)
setup dist: export JAVA_HOME := $(JAVA_HOME)

# Whatever the tools keep stays in this folder: nothing is written to the user's home.
CACHE := $(CURDIR)/.venv/cache
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export JAVA_HOME := $(CURDIR)/.venv/java
export PYSPARK_PYTHON := $(CURDIR)/$(PYTHON_BIN)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
export SPARK_LOCAL_DIRS := $(CACHE)/spark
export SPARK_LOCAL_IP ?= 127.0.0.1
export NUMBA_CACHE_DIR := $(CACHE)/numba
export MPLCONFIGDIR := $(CACHE)/matplotlib
export XDG_CACHE_HOME := $(CACHE)
# With it, a JVM of Spark takes half the CPU to start: see tests/conftest.py.
SPARK_CLASSES := $(CACHE)/spark-classes.jsa
# Where the jars are, tests marked kafka run too.
export DISTLOG_KAFKA_JARS ?= $(wildcard $(CURDIR)/.venv/kafka)
# Where Delta and Iceberg are, for an older PySpark each, tables of them are tried too.
export DISTLOG_TABLE_JARS ?= $(wildcard $(CURDIR)/.venv/tables)
# Where these servers are, tests marked stores run too.
export DISTLOG_STORE_SERVERS ?= $(wildcard $(CURDIR)/.venv/stores)
unexport PYTHONPATH PYTHONHOME SPARK_HOME SPARK_CONF_DIR
# Every process would compile all of the library again: a third of what its start takes.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo 'make demo [INPUT=file [KEY_COLUMN=name] [TIME_COLUMN=name]]'
	@echo '                        append, read, look up and maintain events with Spark, on this machine'
	@echo 'make test               ruff, mypy and every test'
	@echo 'make test-failed        the tests that failed in the last make test, one by one'
	@echo 'make check              ruff, mypy and the quick tests'
	@echo 'make test-versions      try each PySpark from 4.0 on, in .venv/spark, and compare with docs/spark-setup.md'
	@echo 'make soak [MINUTES=10] [REPORT=file]'
	@echo '                        kill processes, fill disks, fail syncs, cut the power; print a page of what was found'
	@echo 'make soak SIMULATION=1000000 [SEED=0]'
	@echo '                        run so many histories in simulated time, on all cores, until a promise is broken'
	@echo 'make bench              measure, beside other tools that do the same'
	@echo 'make peers [ONLY=go,java] [STORAGE=local,s3] [BROKER=1]'
	@echo '                        run Kafka clients of other languages against the gateway, and beside a broker'
	@echo 'make docs               build the documentation into build/docs; open build/docs/index.html'
	@echo 'make lint               ruff and mypy alone'
	@echo 'make dist               build a wheel, and a zip for spark-submit --py-files, in dist/'
	@echo 'make version VERSION=0.2.0'
	@echo '                        give the project this version: code, pages and changelog'
	@echo 'make kafka-jars         get a Kafka broker and tools from Maven Central (needs mvn), for tests marked kafka'
	@echo 'make table-jars         get Delta, Iceberg and an older PySpark for them (needs mvn), for tests of their tables'
	@echo 'make store-servers      get Azurite (needs npm) and fake-gcs-server (needs go), for tests marked stores'
	@echo 'make clean              remove .venv and everything that was built or cached'

setup:
	@tools/bootstrap.sh

# The shell gets these as they were given, and make does not read a name with $ in it as its own language.
override INPUT := $(value INPUT)
override KEY_COLUMN := $(value KEY_COLUMN)
override TIME_COLUMN := $(value TIME_COLUMN)
override ONLY := $(value ONLY)
override STORAGE := $(value STORAGE)
override BROKER := $(value BROKER)
override MINUTES := $(value MINUTES)
override REPORT := $(value REPORT)
override SIMULATION := $(value SIMULATION)
override SEED := $(value SEED)
override VERSION := $(value VERSION)
export INPUT KEY_COLUMN TIME_COLUMN ONLY STORAGE BROKER MINUTES REPORT SIMULATION SEED VERSION

demo: setup
	@$(PYTHON_BIN) -m demo.demo $${INPUT:+--input "$$INPUT"} $${KEY_COLUMN:+--key "$$KEY_COLUMN"} \
		$${TIME_COLUMN:+--timestamp "$$TIME_COLUMN"}

# mypy has one core, so the other does what else each worker or each session of Spark would: it compiles distlog's
# kernels and the tests, and archives Spark's classes. Then three workers on two cores, since many tests wait.
test: setup
	@$(MAKE) --no-print-directory -j2 lint kernels spark-classes compiled-tests
	@$(PYTHON_BIN) -m pytest -n 3

# What failed in the last `make test`; that nothing did is an error.
test-failed: setup
	@$(PYTHON_BIN) -m pytest --last-failed --last-failed-no-failures none

# What a change is tried with: no Spark, no servers, nothing long.
check: setup
	@$(MAKE) --no-print-directory -j2 lint kernels
	@$(PYTHON_BIN) -m pytest -n 3 -m 'not spark and not s3 and not stores and not kafka and not long'

kernels: setup
	@$(PYTHON_BIN) distlog_command.py warmup >/dev/null

spark-classes: setup
	@[ "$(SPARK_CLASSES)" -nt .venv/ready ] || \
		SPARK_SUBMIT_OPTS='-Xlog:disable -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit=$(SPARK_CLASSES)' \
		spark-submit --master 'local[2]' tools/spark_classes.py >/dev/null 2>&1 || true

# pytest keeps what it makes of the assertions of each file, as Python does.
compiled-tests: setup
	@$(PYTHON_BIN) -m pytest --collect-only -q >/dev/null

# Each version lies in a folder of its own, which pip fills once.
test-versions: setup kernels
	@$(PYTHON_BIN) -m tools.spark_versions

# With SIMULATION: so many short histories, then a twentieth as many long ones, as many of these on a local disk, and as
# many schedules of each scenario of the explorer; none is kept but a broken one.
soak: export PYTHONPATH := $(CURDIR):$(CURDIR)/tests:$(CURDIR)/tests/support
soak: setup
	@if [ -z "$$SIMULATION" ]; then \
		$(PYTHON_BIN) -m soak --minutes $${MINUTES:-10} $${REPORT:+--report "$$REPORT"}; \
	else \
		$(PYTHON_BIN) -m simulation --mixed --cores 0 --histories "$$SIMULATION" --seed "$${SEED:-0}" \
			$${MINUTES:+--minutes "$$MINUTES"}; \
	fi

bench: setup
	@$(PYTHON_BIN) -m benchmarks

# Fetches and builds what registries have below the cache; each story that fails must be in its list of such.
peers: export PYTHONPATH := $(CURDIR):$(CURDIR)/tests:$(CURDIR)/tests/support
peers: setup
	@$(PYTHON_BIN) -m peers --cache $(CACHE)/peers --logs $(CACHE)/peers/logs \
		--storage $${STORAGE:-local} $${ONLY:+--only "$$ONLY"} $${BROKER:+--broker}

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(PYTHON_BIN) -m mkdocs build --strict --quiet
	@echo 'built build/docs/index.html'

kafka-jars: setup
	@mvn -q -f tools/kafka/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.venv/kafka
	@mvn -q -f tools/kafka/pom.xml -P spark dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.venv/kafka/spark

table-jars: setup
	@for version in 4.0 4.1; do \
		mvn -q -f tools/tables/pom.xml -P $$version dependency:copy-dependencies \
			-DoutputDirectory=$(CURDIR)/.venv/tables/$$version || exit 1; \
	done
	@$(PYTHON_BIN) -c 'from tools.spark_versions import folder_of; [folder_of(each) for each in ("4.0", "4.1.1")]'

store-servers: setup
	@$(PYTHON_BIN) -m pip install --quiet --disable-pip-version-check -e '.[gcs,azure]'
	@npm install --silent --no-audit --no-fund --prefix .venv/stores azurite@3
	@GOBIN=$(CURDIR)/.venv/stores/bin go install github.com/fsouza/fake-gcs-server@v1.56.1

lint: setup
	@$(PYTHON_BIN) -m ruff check .
	@$(PYTHON_BIN) -m ruff format --check .
	@$(PYTHON_BIN) -m mypy

# One commit makes one wheel, whatever rights its files have in a clone, and whenever it is made. It needs no Java, and
# none of the packages: .venv is neither made nor used.
dist:
	@rm -rf build dist; mkdir -p build/source
	@tools/bootstrap.sh build/python
	@cp -R distlog distlog_command.py pyspark_distlog.py pyproject.toml README.md LICENSE build/source
	@chmod -R u=rwX,go=rX build/source
	@umask 022; SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 1000000000) build/python/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist build/source
	@wheel=$$(echo dist/*.whl); build/python/bin/python tools/spark_zip.py $${wheel%-py3-none-any.whl}.zip
	@ls dist/*

version: setup
	@$(PYTHON_BIN) -m tools.set_version "$$VERSION"

clean:
	rm -rf .venv .demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
