// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"github.com/wcache/wcache/loader"
)

// follow waits for the end of a keeper, a loader that keeps the memory it has filled, and
// then drops the entry, whose memory is gone. When the server ends, follow waits for the
// keeper's end too, unless there is a store: then the service manager ends the keeper.
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
