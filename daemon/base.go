// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
)

// base is what each part of the server needs: what it was started with, the
// configuration as it was last read, and the context that ends with it. Safe for
// concurrent use.
type base struct {
	o      Options
	log    *slog.Logger
	ctx    context.Context // done when connections have to end
	end    context.CancelFunc
	checks chan struct{} // a token for each request that looks at files

	configMu  sync.Mutex // guards what follows, and is held for no more than a look
	config    config.Config
	configErr error // why config isn't what the file says
}

func newBase(o Options) *base {
	b := &base{o: o, log: o.Log, checks: make(chan struct{}, maxChecks)}
	b.ctx, b.end = context.WithCancel(context.Background())
	b.config, b.configErr = inTime("the configuration", o.Configure)
	if b.configErr != nil {
		b.config = config.Default()
		//diag starting
		// The configuration has an error, which the line gives. The daemon uses the defaults and
		// loads nothing; correct the file and reload the service.
		b.log.Error("configuration is not used", "err", b.configErr)
	}
	return b
}

// configuration is what was last read without an error.
func (b *base) configuration() config.Config {
	b.configMu.Lock()
	defer b.configMu.Unlock()
	return b.config
}

// configProblem is why the configuration isn't what its file says, nil if it is.
func (b *base) configProblem() error {
	b.configMu.Lock()
	defer b.configMu.Unlock()
	return b.configErr
}

// reload reads the configuration again. With an error the one before stays.
func (b *base) reload() (config.Config, error) {
	c, err := inTime("the configuration", b.o.Configure)
	b.configMu.Lock()
	defer b.configMu.Unlock()
	if b.configErr = err; err == nil {
		b.config = c
	}
	return b.config, err
}

// unlessBroken is the error of a request that could not be answered; where there is no
// device, or the configuration is broken, so that nothing is known of where to look and
// what is meant, that is the reason.
func (b *base) unlessBroken(err error) error {
	if b.o.DeviceErr != nil {
		return b.o.DeviceErr
	}
	if broken := b.configProblem(); broken != nil {
		//diag loading REASON
		// The daemon read a configuration with an error. Correct the file and run
		// `systemctl --user reload wcache@INSTANCE.service`; it serves what it holds meanwhile.
		return fmt.Errorf("nothing is loaded with a broken configuration: %w", broken)
	}
	return err
}

// device is what the loader opens.
func (b *base) device(c config.Config) string {
	if c.Handles == config.HandlesLegacy && b.o.Legacy != "" {
		return b.o.Legacy
	}
	return b.o.Device
}

// keeps reports whether entries are memory that a loader keeps. An engine opens
// that by a handle and needs nothing of this process.
func (b *base) keeps() bool {
	return b.o.AMD || b.o.Legacy != "" && b.configuration().Handles == config.HandlesLegacy
}

// byValue reports whether replies hold the bytes of host memory themselves.
func (b *base) byValue() bool {
	return !b.o.GPU && b.configuration().Handles == config.HandlesValue
}

// restart is what a restart of the service does to what is held.
func (b *base) restart() string {
	switch {
	case b.o.Store == nil:
		return control.RestartUnmanaged
	case b.keeps():
		return control.RestartFrees
	}
	return control.RestartKeeps
}

// within limits what a request does to the time that a load may take.
func (b *base) within(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := time.Duration(b.configuration().LoadTimeout)
	return context.WithTimeoutCause(ctx, limit, &tooSlow{limit})
}

// tooSlow is the error of a load that took longer than it may.
type tooSlow struct{ limit time.Duration }

//diag loading TIME
// The load was stopped at the limit of `load_timeout`. Raise it, or see why the disk is slow.

func (e *tooSlow) Error() string { return fmt.Sprintf("it took longer than %v", e.limit) }

// Advice is what to do about it.
func (e *tooSlow) Advice() string { return "load_timeout in wcache.toml allows more" }
