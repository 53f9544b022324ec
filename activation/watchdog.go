// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation

import (
	"context"
	"log/slog"
	"time"
)

// Watch calls check three times per watchdog interval, and tells the manager that the service
// works each time that check succeeds. It logs an error of check, which must end with its
// context. Without a watchdog it does nothing. Stop ends it, and returns when it has ended.
func (n *Notifier) Watch(ctx context.Context, check func(context.Context) error, log *slog.Logger) (stop func()) {
	interval := n.WatchdogInterval()
	if interval <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(interval / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			limited, end := context.WithTimeout(ctx, interval/3)
			err := check(limited)
			end()
			if err == nil {
				err = n.Watchdog()
			}
			if err != nil && ctx.Err() == nil {
				//diag serving
				// The daemon's own test connection failed, for the logged reason. If that lasts,
				// the service manager restarts the daemon, which keeps the weights.
				log.Error("watchdog is not told", "err", err)
			}
		}
	}()
	return func() { cancel(); <-done }
}
