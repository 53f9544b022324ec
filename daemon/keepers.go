// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"github.com/wcache/wcache/loader"
)

// follow waits for the end of a loader that keeps what it has filled, and drops the
// entry then: its memory has ended too. When the server ends, it waits for the
// keeper's end, unless the next process is to find the memory: what the service
// manager does to the keeper meanwhile is no affair of this one.
func (l *loads) follow(k *loader.Keeper) {
	l.log.Info("keeper started", "keeper", k.PID())
	l.keepers.Go(func() {
		select {
		case <-k.Ended():
			n := l.cache.DropGone()
			l.log.Info("keeper ended", "keeper", k.PID(), "state", k.End(), "dropped", n)
		case <-l.ctx.Done():
			if l.o.Store == nil {
				l.log.Info("keeper ended", "keeper", k.PID(), "state", k.End())
			}
		}
	})
}
