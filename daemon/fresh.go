// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights"
)

// fresh reports as a [*cache.Stale] why an entry must not be served any more: its files
// have changed since the load, or the configuration asks for another kind of memory.
func (l *loads) fresh(ctx context.Context, h *cache.Hold) error {
	e := h.Record()
	if device := l.device(l.configuration()); e.Device != device {
		return &cache.Stale{Why: fmt.Sprintf("handles in wcache.toml ask for memory of %s, it is of %s", device, e.Device)}
	}
	limited, cancel := context.WithTimeoutCause(ctx, checkLimit, &hangs{e.Dir, checkLimit})
	defer cancel()
	_, err := beside(limited, l.checks, func(context.Context) (struct{}, error) { return struct{}{}, recordOf(e).Stale() })
	var changed *stamp.Changed
	switch {
	case err == nil:
		return nil
	case errors.As(err, &changed) && changed.MayBeEqual:
		return l.compare(ctx, h, changed)
	case errors.As(err, &changed):
		return &cache.Stale{Why: changed.Error()}
	}
	return err
}

// compare has a child hold the memory of an entry against its files, of which only what
// shapes no contents has certainly changed: attributes, inode numbers or the mount. If
// they are equal the entry goes on with the files as they are now. That costs the time
// of a load, and no second copy of the weights beside the one that engines have mapped.
func (l *loads) compare(ctx context.Context, h *cache.Hold, changed *stamp.Changed) error {
	e := h.Record()
	return l.compares.do(ctx, e.ID, func() error {
		now, err := l.against(l.ctx, h, false, nil)
		var slow *tooSlow
		var gone *gpuGone
		var busy *weights.Busy
		switch {
		case errors.As(err, &slow), errors.As(err, &gone), errors.As(err, &busy), l.ctx.Err() != nil:
			return err
		case err != nil:
			l.log.Info("loading again", "key", e.Key.ID()[:12], "model", e.Dir, "changed", changed, "err", err)
			return &cache.Stale{Why: changed.Error()}
		case now.difference != nil:
			l.log.Info("loading again", "key", e.Key.ID()[:12], "model", e.Dir, "changed", changed, "difference", *now.difference)
			return &cache.Stale{Why: changed.Error()}
		}
		h.Renew(now.files) // without digests, which are computed anew: the child didn't read whole files
		l.log.Info("files were touched, and hold what was loaded", "key", e.Key.ID()[:12], "model", e.Dir, "changed", changed)
		return nil
	})
}
