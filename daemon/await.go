// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/wcache/wcache/cache"
)

// await calls read, which reads a request, and limits its time to request_timeout. Came
// is false if there is no request to answer; then err says why, and is nil if the client
// closed the connection without sending anything.
func (b *base) await(conn *net.UnixConn, v *visitor, read func() error) (came bool, err error) {
	limit := time.Duration(b.configuration().RequestTimeout)
	_ = conn.SetReadDeadline(time.Now().Add(limit)) // if it is closed, read fails
	over := make(chan struct{})
	stop := context.AfterFunc(v.ctx, func() {
		defer close(over)
		wait := time.Duration(0)
		if errors.Is(context.Cause(v.ctx), errCrowded) {
			wait = lastChance
		}
		_ = conn.SetReadDeadline(time.Now().Add(wait))
	})
	err = read()
	if !stop() {
		<-over // from here on it sets no deadline
	}
	v.leave()
	if err != nil {
		return false, unread(v.ctx, err, limit)
	}
	v.end(nil)
	_ = conn.SetReadDeadline(time.Time{})
	return true, nil
}

// lastChance is how long await still reads from a connection that has to leave its
// lobby: when very many connect at once, its request may have arrived unread.
const lastChance = 100 * time.Millisecond

// unread gives the error of a request that could not be read; nil if the client closed
// the connection without sending anything.
func unread(ctx context.Context, err error, limit time.Duration) error {
	switch {
	case errors.Is(err, io.EOF): // the client only checked whether a daemon listens
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(context.Cause(ctx), errCrowded):
		return errCrowded
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return cache.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		//diag engine TIME
		// A client connected and did not send its whole request in time, and the daemon has closed
		// the connection. The client is a stopped engine, or another program.
		return fmt.Errorf("read request: it has not come within %v", limit)
	}
	return err
}
