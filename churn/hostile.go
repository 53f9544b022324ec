// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/protocol"
)

// hostile is a process that does what real engines never do.
type hostile struct {
	socket   string
	requests [][]byte // frames that engines send
	flood    bool     // more watches than are kept
}

// playHostile acts until the process is killed: its arguments are a socket, a seed, and
// whether to open more watches than the service keeps.
func playHostile(args []string) error {
	if len(args) != 3 {
		return errors.New("be hostile: want a socket, a seed and true or false")
	}
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	h := &hostile{socket: args[0], flood: args[2] == "true"}
	for _, r := range []*protocol.Request{{Cmd: protocol.GetMemory}, {Cmd: protocol.Watch}, {Cmd: protocol.GetState, KeyField: "cache_key"}, {Cmd: "none"}} {
		payload, err := protocol.EncodeRequest(r)
		if err != nil {
			return err
		}
		h.requests = append(h.requests, slices.Concat(binary.BigEndian.AppendUint64(nil, uint64(len(payload))), payload))
	}
	var all sync.WaitGroup
	for n := range 3 {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		all.Go(func() {
			for {
				h.act(rng)
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			}
		})
	}
	all.Wait()
	return nil
}

// act does one thing. Its errors are the service's ways to end the connection.
func (h *hostile) act(rng *rand.Rand) {
	request := slices.Clone(h.requests[rng.IntN(len(h.requests))])
	switch rng.IntN(10) {
	case 0: // garbage
		b := make([]byte, rng.IntN(4096))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		h.send(rng, h.socket, b, true)
	case 1: // a length that makes no sense
		h.send(rng, h.socket, binary.BigEndian.AppendUint64(nil, rng.Uint64()), true)
	case 2: // a few bits of a request
		for range 1 + rng.IntN(4) {
			request[8+rng.IntN(len(request)-8)] ^= 1 << rng.IntN(8)
		}
		h.send(rng, h.socket, request, true)
	case 3: // a part of one, then the end
		h.send(rng, h.socket, request[:rng.IntN(len(request))], false)
	case 4: // one, byte by byte
		h.drip(rng, request)
	case 5: // one whose answer isn't read
		h.send(rng, h.socket, request, false)
	case 6: // two in one
		h.send(rng, h.socket, slices.Concat(request, request), true)
	case 7: // watches, or silent connections
		h.crowd(rng)
	default:
		lines := []string{"\n", "{", "{}\n", "[[[[[[[[\n", `{"method":"warm"}` + "\n", `{"method":"warm","warm":{"model":"/none"}}` + "\n",
			`{"method":"evict","evict":{"key":"zz"}}` + "\n", `{"method":"status"}` + "\n", `{"method":"status"}`, string(make([]byte, control.MaxRequest+2))}
		h.send(rng, control.Path(h.socket), []byte(lines[rng.IntN(len(lines))]), rng.IntN(2) == 0)
	}
}

// send connects, writes and, if it shall, reads what comes.
func (h *hostile) send(rng *rand.Rand, socket string, b []byte, read bool) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer conn.Close()
	if _, err := conn.Write(b); err != nil || !read {
		time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Second)) // shows at the read
	for buf := make([]byte, 512); err == nil; {
		_, err = conn.Read(buf)
	}
}

// drip writes byte by byte, for longer than a request may take.
func (h *hostile) drip(rng *rand.Rand, b []byte) {
	conn, err := net.Dial("unix", h.socket)
	if err != nil {
		return
	}
	defer conn.Close()
	for i := range b {
		if _, err := conn.Write(b[i : i+1]); err != nil {
			return
		}
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
	}
}

// crowd opens many connections at once, more than the service has room for, which watch or
// stay silent, and closes them a moment later.
func (h *hostile) crowd(rng *rand.Rand) {
	n := 1 << (6 + rng.IntN(6))
	socket := h.socket
	watch := rng.IntN(2) == 0
	if watch && !h.flood {
		n = min(n, 256)
	}
	if !watch && rng.IntN(3) == 0 {
		socket = control.Path(h.socket)
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close() // nothing is read from them
		}
	}()
	for range n {
		c, err := net.Dial("unix", socket)
		if err != nil {
			break // no numbers are left
		}
		conns = append(conns, c)
		if !watch {
			continue
		}
		if _, err := c.Write(h.requests[1]); err != nil {
			break
		}
	}
	time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
}
