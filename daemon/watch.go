// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/daemon/peer"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/protocol"
)

// watchPrefix begins the names of watch connections in the store.
const watchPrefix = "w-"

// watches holds the connections by which engines learn that their weights are gone. Safe
// for concurrent use.
type watches struct {
	*base
	crowd   *crowd
	store   *store
	replies *replies
	conns   *sync.WaitGroup

	mu   sync.Mutex
	lost chan struct{} // closed, and replaced, when weights are gone
}

// serve keeps a connection until the engine or the server ends. The engine only reads from
// it; the end of the connection means to the engine that its weights are gone.
func (w *watches) serve(ctx context.Context, conn *net.UnixConn, p peer.Process) {
	if !w.crowd.watches.take() {
		err := w.crowd.watches.full() // an engine goes on without one
		//diag serving
		// The limit of watching engines is reached: 4096, or a fifth of the limit of open files. The
		// engine works on and will not notice the end of the daemon; raise `LimitNOFILE=` for more.
		w.log.Warn("watch refused", "pid", p.PID, "err", err)
		w.replies.answer(conn, p, protocol.Error(err.Error()))
		return
	}
	defer w.crowd.watches.leave()
	kept := make(chan string, 1)
	go func() {
		name, err := w.keep(conn, p.PID)
		if err != nil {
			//diag serving
			// The service manager did not take the connection, for the logged reason. The engine
			// works on, but takes the next restart of the service for the end of its weights.
			w.log.Warn("watch would not outlive the daemon", "pid", p.PID, "err", err)
		}
		kept <- name
	}()
	// Before the answer the store should have the connection, so that the watch outlives
	// this process. Thousands of watches at once keep the service manager busy, so the wait
	// has a limit.
	name, waited := "", true
	timer := time.NewTimer(watchWait)
	defer timer.Stop()
	select {
	case name = <-kept:
		waited = false
	case <-timer.C:
	case <-ctx.Done():
	}
	err := w.replies.reply(conn, protocol.OK())
	if waited {
		name = <-kept
	}
	if err != nil {
		//diag serving
		// An engine ended or closed its connection before its watch was confirmed. Nothing has to
		// be done.
		w.log.Warn("watch not answered", "pid", p.PID, "err", err)
		if name != "" {
			w.forget(name)
		}
		return
	}
	w.log.Info("watch", "pid", p.PID)
	w.untilEnd(ctx, conn, name)
}

// endAll tells all engines that watch that their weights are gone.
func (w *watches) endAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.lost)
	w.lost = make(chan struct{})
}

// watchWait is how long the answer to a watch waits for the service manager. Engines wait
// for 5 seconds.
const watchWait = 2 * time.Second

// untilEnd waits for the end of the engine, of the weights, or of the server. The
// connection stays in the store only when the server ends.
func (w *watches) untilEnd(ctx context.Context, conn *net.UnixConn, name string) {
	hangup, cancel := untilHangup(ctx, conn)
	w.mu.Lock()
	lost := w.lost
	w.mu.Unlock()
	select {
	case <-hangup.Done():
	case <-lost:
		_ = conn.CloseWrite() // ends the connection although the store has a duplicate
	}
	cancel()
	if ctx.Err() == nil && name != "" {
		w.forget(name)
	}
}

// recover continues an engine's watch, unless the descriptor isn't a connection of this
// user's.
func (w *watches) recover(name string, f *fd.FD) {
	conn, err := watched(f)
	if err != nil {
		w.store.drop(name, f, err.Error())
		return
	}
	_ = f.Close() // conn has a descriptor of its own
	if !w.crowd.watches.take() {
		//diag restart
		// The service manager gave back more connections of engines than the daemon may keep,
		// because the limit of open files is lower than before. Raise `LimitNOFILE=` of the service.
		w.log.Warn("watch is dropped", "name", name, "reason", w.crowd.watches.full())
		_ = conn.Close()
		w.store.forget(name)
		return
	}
	w.crowd.kept.add()
	w.crowd.kept.arrived()
	w.crowd.open.Add(1)
	w.conns.Go(func() {
		w.untilEnd(w.ctx, conn, name)
		_ = conn.Close()
		w.crowd.watches.leave()
		w.crowd.open.Add(-1)
	})
}

// watched makes a connection from a descriptor, which stays the caller's.
func watched(f *fd.FD) (*net.UnixConn, error) {
	dup, err := f.Dup()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(dup.Disown()), "watch")
	c, err := net.FileConn(file)
	err = errors.Join(err, file.Close())
	if err != nil {
		return nil, fmt.Errorf("not a connection: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a connection of an engine"), c.Close())
	}
	p, err := peer.Of(conn)
	if err == nil && p.UID != os.Getuid() {
		err = fmt.Errorf("it is a connection of uid %d", p.UID)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// keep puts a connection into the store, under a unique name. The name is "" if the store
// doesn't have it.
func (w *watches) keep(conn *net.UnixConn, pid int) (name string, err error) {
	if w.store.kept == nil {
		return "", nil
	}
	share := &w.crowd.kept
	need := share.add()
	defer func() {
		if share.arrived(); err != nil {
			share.gone()
			name = ""
		}
	}()
	if err := w.store.kept.Room(need); err != nil {
		return "", err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return "", fmt.Errorf("keep connection: %w", err)
	}
	var f *fd.FD
	var dupErr error
	if err := raw.Control(func(n uintptr) {
		var d int
		if d, dupErr = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0); dupErr == nil {
			f, dupErr = fd.New(d)
		}
	}); err != nil || dupErr != nil {
		return "", fmt.Errorf("keep connection: %w", errors.Join(err, dupErr))
	}
	name = fmt.Sprintf("%s%d-%x", watchPrefix, pid, time.Now().UnixNano())
	return name, errors.Join(w.store.kept.Put(name, f), f.Close())
}

// forget removes a watch from the store.
func (w *watches) forget(name string) {
	w.store.forget(name)
	w.crowd.kept.gone()
}

// untilHangup gives a context that ends when the peer closes the connection. It reads from
// the connection, so the caller must not. The caller cancels it before it closes the
// connection.
func untilHangup(ctx context.Context, conn *net.UnixConn) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := conn.Read(make([]byte, 1))
		var timeout net.Error
		if err != nil && errors.As(err, &timeout) && timeout.Timeout() {
			return // the cancel function below or the server's end set the deadline
		}
		cancel()
	}()
	return ctx, func() {
		cancel()
		_ = conn.SetReadDeadline(time.Now())
		<-done
	}
}
