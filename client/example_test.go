// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package client_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/protocol"
)

// Asks an instance what it holds. The instance of this example is a stand-in; the
// instance of GPU 0 listens on control.Path(client.Socket(os.Getenv, os.Getuid(), "0")).
func ExampleDo() {
	socket := standIn(func(conn net.Conn) error {
		if _, err := control.ReadRequest(bufio.NewReader(conn)); err != nil {
			return err
		}
		status := control.Status{Schema: control.Schema, Instance: "0", State: "serving", Entries: []control.Entry{{Model: "/models/llama", State: "ready"}}}
		return control.Write(conn, control.Reply{Final: true, Status: &status})
	})
	defer os.RemoveAll(filepath.Dir(socket))

	reply, err := client.Do(context.Background(), socket, control.Request{Method: control.MethodStatus}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("instance", reply.Status.Instance, "is", reply.Status.State)
	for _, e := range reply.Status.Entries {
		fmt.Println(e.Model, e.State)
	}
	// Output:
	// instance 0 is serving
	// /models/llama ready
}

// Asks as an engine does how much memory is held.
func ExampleEngine() {
	socket := standIn(func(conn net.Conn) error {
		if _, err := protocol.ReadFrame(conn, protocol.MaxRequest); err != nil {
			return err
		}
		return protocol.WriteFrame(conn, protocol.Memory(16<<30))
	})
	defer os.RemoveAll(filepath.Dir(socket))

	request, err := protocol.EncodeRequest(&protocol.Request{Cmd: protocol.GetMemory})
	if err != nil {
		log.Fatal(err)
	}
	reply, conn, err := client.Engine(context.Background(), socket, request)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Println(reply.Status, reply.MemoryBytes>>30, "GiB")
	// Output:
	// ok 16 GiB
}

// standIn listens on a socket in a new folder and answers one request.
func standIn(answer func(net.Conn) error) (socket string) {
	dir, err := os.MkdirTemp("", "wcache")
	if err != nil {
		log.Fatal(err)
	}
	socket = filepath.Join(dir, "0.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		defer l.Close()
		conn, err := l.Accept()
		if err == nil {
			err = answer(conn)
			conn.Close()
		}
		if err != nil {
			log.Fatal(err)
		}
	}()
	return socket
}
