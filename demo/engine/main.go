// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Command engine stands in for vLLM in the demo: it sends a request that was
// recorded from a real engine, maps the tensors of the reply as torch would, and
// compares each with what vLLM's own loader made of the same checkpoint.
//
// With -watch it then stays, as an engine does, until its standard input ends.
// Before that it closes its standard output, so that the reader sees its end.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/protocol"
)

// patience is the longest time for an answer, with the load of a tiny model and the
// start of the service, on a busy machine.
const patience = time.Minute

type options struct {
	socket  string
	request string // a recorded frame
	watch   string // likewise, "": the engine doesn't stay
	layout  string // what vLLM's own loader made
	rows    int    // of the table
}

func main() {
	var o options
	activate := flag.Bool("activate", false, "wait for a connection to -socket, then become the command in the arguments, as systemd starts a service")
	flag.StringVar(&o.socket, "socket", "", "the engine's socket")
	flag.StringVar(&o.request, "request", "", "file of the recorded get_state")
	flag.StringVar(&o.watch, "watch", "", "file of the recorded watch: send it too, and stay until standard input ends")
	flag.StringVar(&o.layout, "layout", "", "file that says what vLLM's own loader makes")
	flag.IntVar(&o.rows, "rows", 6, "tensors to show")
	flag.Parse()
	var err error
	if *activate {
		err = becomeService(o.socket, flag.Args())
	} else {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "engine: error: %v\n", err)
		os.Exit(1)
	}
}

func run(o options) error {
	want, err := readLayout(o.layout)
	if err != nil {
		return err
	}
	begin := time.Now()
	reply, err := ask(o.socket, o.request)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	mapped, err := mapReply(reply)
	if err != nil {
		return err
	}
	defer mapped.close()
	fmt.Printf("answered in %.1f ms, %d tensors in %d bytes of shared memory\n", took.Seconds()*1000, len(reply.Entries), mapped.bytes)
	if err := want.compare(os.Stdout, reply, mapped, o.rows); err != nil {
		return err
	}
	if o.watch == "" {
		return nil
	}
	return stay(o.socket, o.watch)
}

// ask sends a recorded frame and returns the reply, which has to be good.
func ask(socket, recorded string) (*protocol.Reply, error) {
	reply, hangup, err := send(socket, recorded)
	if err != nil {
		return nil, err
	}
	return reply, hangup()
}

func send(socket, recorded string) (*protocol.Reply, func() error, error) {
	b, err := os.ReadFile(recorded)
	if err != nil {
		return nil, nil, err
	}
	payload, err := protocol.ReadFrame(bytes.NewReader(b), protocol.MaxRequest)
	if err != nil {
		return nil, nil, fmt.Errorf("read %q: %w", recorded, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	reply, conn, err := client.Engine(ctx, socket, payload)
	if err != nil {
		return nil, nil, err
	}
	if reply.Status != protocol.StatusOK {
		return nil, nil, errors.Join(fmt.Errorf("ask %q: %s %s %q", socket, reply.Status, reply.Message, reply.Fields), conn.Close())
	}
	return reply, conn.Close, nil
}

// stay keeps a watch open, by which an engine learns that the service ends.
func stay(socket, recorded string) error {
	_, hangup, err := send(socket, recorded)
	if err != nil {
		return err
	}
	if err := os.Stdout.Close(); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, hangup())
}
