"""The functions of the APIs, from a request to the fields of its response: a module for each group of APIs."""
