// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation

import (
	"context"
	"log/slog"
	"time"
)

// Watch tells a manager that watches the service that it works, each time that check,
// which has to end with its context, finds it so: thrice in the manager's interval. A
// check that fails is logged. stop ends it and waits for that.
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
