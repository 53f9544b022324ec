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

// await has read read a request, which has to come whole within its time. Came is false
// where there is none; then the error is nil where nobody asked anything.
func (b *base) await(conn *net.UnixConn, v *visitor, read func() error) (came bool, err error) {
	limit := time.Duration(b.configuration().RequestTimeout)
	_ = conn.SetReadDeadline(time.Now().Add(limit)) // a connection that is closed shows at the read
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
		<-over // it sets no deadline any more
	}
	v.leave()
	if err != nil {
		return false, unread(v.ctx, err, limit)
	}
	v.end(nil)
	_ = conn.SetReadDeadline(time.Time{})
	return true, nil
}

// lastChance is how long one that is sent away is read yet: where very many come at
// once its request may be there, and nothing has had the time to read it.
const lastChance = 100 * time.Millisecond

// unread words why a request could not be read; nil where nobody asked anything.
func unread(ctx context.Context, err error, limit time.Duration) error {
	switch {
	case errors.Is(err, io.EOF): // one who only looks whether somebody is there
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(context.Cause(ctx), errCrowded):
		return errCrowded
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return cache.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		//diag engine TIME
		// A client connected and sent no whole request in time. A stopped engine or a program that
		// is not an engine does that; the daemon has closed the connection.
		return fmt.Errorf("read request: it has not come within %v", limit)
	}
	return err
}
