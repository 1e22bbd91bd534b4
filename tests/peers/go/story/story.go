// Package story runs the stories of a client, and prints a line about each.
package story

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Patience is how long a story may take: the machine may do much else.
const Patience = 60 * time.Second

// Peer has the arguments of a program: ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...]
type Peer struct {
	Address, Secured, Prefix string
	only                     map[string]bool
}

// New reads the arguments.
func New() Peer {
	peer := Peer{os.Args[1], os.Args[2], os.Args[3], map[string]bool{}}
	for _, each := range os.Args[4:] {
		peer.only[each] = true
	}
	return peer
}

// Tell runs a story unless others are asked for.
func (peer Peer) Tell(name string, body func(ctx context.Context, topic string) error) {
	if len(peer.only) > 0 && !peer.only[name] {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	begun, done := time.Now(), make(chan error, 1)
	go func() { done <- body(ctx, peer.Prefix+"-"+name) }()
	var err error
	select {
	case err = <-done:
	case <-time.After(Patience + 10*time.Second):
		err = errors.New("it does not end")
	}
	if err != nil {
		fmt.Println("failed", name, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Println("ok", name, time.Since(begun).Milliseconds())
}

// Same is an error unless both are the same.
func Same[T comparable](what string, found, expected T) error {
	if found != expected {
		return fmt.Errorf("%s: expected %v, found %v", what, expected, found)
	}
	return nil
}

// First is the first error.
func First(all ...error) error {
	for _, each := range all {
		if each != nil {
			return each
		}
	}
	return nil
}

// Until asks until it holds, or the story's time is over.
func Until(ctx context.Context, what string, holds func() bool) error {
	for !holds() {
		if ctx.Err() != nil {
			return errors.New("not in time: " + what)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}
