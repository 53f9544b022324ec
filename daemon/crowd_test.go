// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"bufio"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/testmain"
)

// narrow is a server with little room for connections, whose clients have all time.
func narrow(t *testing.T) *instance {
	t.Helper()
	return start(t, func(s *setup) {
		s.Config.RequestTimeout = config.Duration(time.Hour)
		s.Crowd = func(c *crowd) {
			c.engines.max, c.control.max = 4, 4
			c.states.max, c.watches.max, c.asked.max = 2, 3, 2
		}
	})
}

// Watches take their own places only: what they leave is enough for requests and for
// control clients, and one too many is told so (case C7).
func TestManyWatches(t *testing.T) {
	t.Parallel()
	i := narrow(t)
	watch := frame(recorded(t, "0.33.0-watch"))
	var watching []*net.UnixConn
	for range 3 {
		c := send(t, i.target, watch)
		wantAnswer(t, receive(t, c), "ok")
		watching = append(watching, c)
	}
	const full = "error: there are 3 engines that watch already, which is the limit"
	c := send(t, i.target, watch)
	wantAnswer(t, receive(t, c), full)
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("its connection is still there")
	}
	if !strings.Contains(i.log.String(), `msg="watch refused"`) {
		t.Error("it is not in the log")
	}
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))), "ok")
	if got := i.status(t).State; got != "serving" {
		t.Errorf("status says %q", got)
	}
	do(t, watching[1].Close())
	testmain.Eventually(t, "a place for another watch", func() bool { return i.crowd.watches.taken.Load() == 2 })
	wantAnswer(t, receive(t, send(t, i.target, watch)), "ok")
	wantAnswer(t, receive(t, send(t, i.target, watch)), full)
}

// Silent clients don't keep others out: the daemon reads the newest connection, and closes the
// one that was silent longest, with the reason.
func TestManySilent(t *testing.T) {
	t.Parallel()
	const crowded = "read request: none came, and newer connections need its place"
	i := narrow(t)
	var silent, asking []*net.UnixConn
	for n := range 20 {
		silent = append(silent, send(t, i.target, nil))
		asking = append(asking, send(t, i.control, []byte("{")))
		if n%5 == 0 {
			wantAnswer(t, engineAsk(t, i.target, recorded(t, "0.33.0-get_memory")), "ok")
			i.status(t)
		}
	}
	for n, c := range silent[:16] {
		if got := answer(receive(t, c)); got != "error: "+crowded {
			t.Errorf("engine %d got %s", n, got)
		}
	}
	for n, c := range asking[:16] {
		var reply control.Reply
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if err := control.Read(bufio.NewReader(c), &reply); err != nil || reply.Error == nil || reply.Error.Message != crowded {
			t.Errorf("control client %d got %+v, %v", n, reply, err)
		}
	}
	// Those that are there yet are read when they say something.
	_, err := silent[19].Write(frame(recorded(t, "0.33.0-get_memory")))
	do(t, err)
	wantAnswer(t, receive(t, silent[19]), "ok")
}

// A client that loses its place while its request has arrived unread still gets its answer.
func TestSentAwayUnread(t *testing.T) {
	t.Parallel()
	i := narrow(t)
	for _, there := range []bool{true, false} {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		do(t, err)
		var conns [2]*net.UnixConn
		for n, end := range ends {
			f := os.NewFile(uintptr(end), "")
			c, err := net.FileConn(f)
			do(t, err, f.Close())
			conns[n] = c.(*net.UnixConn)
			defer conns[n].Close()
		}
		if there {
			_, err = conns[1].Write([]byte{1})
			do(t, err)
		}
		l := &lobby{max: 1}
		v := l.enter(t.Context())
		l.enter(t.Context()).leave() // it has taken the place of v
		came, err := i.await(conns[0], v, func() error {
			_, err := conns[0].Read(make([]byte, 1))
			return err
		})
		if came != there || there && err != nil || !there && !errors.Is(err, errCrowded) {
			t.Errorf("a request that is there (%v): came %v, %v", there, came, err)
		}
	}
}

// Requests that wait for a load take no places from other requests.
func TestManyWaiting(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	i := start(t, func(s *setup) {
		s.Loader.Command = []string{"/proc/self/exe", "load", g.path}
		s.Crowd = func(c *crowd) { c.states.max = 2 }
	})
	request := getState(t, key(t, "llama-tp1r0"))
	first, second := later(t, i.target, request), later(t, i.target, request)
	open := g.arrived(t)
	testmain.Eventually(t, "both wait", func() bool { return i.crowd.states.taken.Load() == 2 })
	const full = "there are 2 requests that wait for weights already, which is the limit"
	wantAnswer(t, engineAsk(t, i.target, request), "error: "+full)
	_, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: "/x"}}, nil)
	if err == nil || err.Error() != full {
		t.Errorf("warm got %v", err)
	}
	wantAnswer(t, engineAsk(t, i.target, recorded(t, "0.33.0-get_memory")), "ok")
	i.status(t)
	open()
	if got := []string{<-first, <-second}; !cmp.Equal(got, []string{"ok", "ok"}) {
		t.Errorf("those that waited got %q", got)
	}
	testmain.Eventually(t, "no place is taken", func() bool { return i.crowd.states.taken.Load() == 0 })
	wantAnswer(t, engineAsk(t, i.target, request), "ok")
}

// The service manager's question is answered however many others there are.
func TestPingInACrowd(t *testing.T) {
	t.Parallel()
	i := narrow(t)
	for i.crowd.asked.take() {
	}
	_, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodStatus}, nil)
	if want := "there are 2 control requests already, which is the limit"; err == nil || err.Error() != want {
		t.Errorf("status got %v, want %s", err, want)
	}
	_, err = client.Do(t.Context(), i.control, control.Request{Method: control.MethodPing}, nil)
	do(t, err)
}

// Stopping waits for no client, however many there are that say nothing.
func TestStopInACrowd(t *testing.T) {
	t.Parallel()
	i := narrow(t)
	for range 10 {
		send(t, i.target, nil)
		send(t, i.control, nil)
		send(t, i.target, frame(recorded(t, "0.33.0-watch")))
	}
	do(t, i.stop())
	if n := i.crowd.open.Load(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

// However few files may be open, each kind has some room, and all together leave
// more than half.
func TestShares(t *testing.T) {
	t.Parallel()
	for _, files := range []uint64{256, 1024, 4096, 1 << 14, 1 << 19, 1<<64 - 1} {
		c := newCrowd(files)
		sum := int64(c.engines.max+c.control.max) + c.states.max + c.watches.max + c.asked.max
		if sum*100 > int64(min(files, 1<<20)*45) || min(int64(c.engines.max), int64(c.control.max), c.states.max, c.watches.max, c.asked.max) < 4 {
			t.Errorf("%d files: %+v", files, c)
		}
	}
	c := newCrowd(1 << 19)
	got := []int64{int64(c.engines.max), c.states.max, c.watches.max, int64(c.control.max), c.asked.max}
	if diff := cmp.Diff([]int64{maxReading, maxStates, maxWatches, maxControl, maxAsked}, got); diff != "" {
		t.Error(diff)
	}
}
