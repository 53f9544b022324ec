// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/activation"
	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/daemon"
	"github.com/wcache/wcache/daemon/listeners"
	"github.com/wcache/wcache/device/place"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/logqueue"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/weights/index"
)

const serveHelp = `Answer engines: run by systemd, which passes the sockets, or with --listen.

If it can't do something, it keeps running and answers with the reason. SIGHUP reads
the configuration again, SIGTERM ends it and frees the weights.`

// flushTime is how long the ending daemon waits for a log that isn't read.
const flushTime = 2 * time.Second

// memoryLimit is the memory, in bytes, above which Go collects all garbage it can: headers
// and configurations of model directories have 1 GiB, replies have 64 MiB, and the rest is
// small.
const memoryLimit = 5 << 28

// serveOptions are the flags of serve.
type serveOptions struct {
	listen, draft []string
	device        string
	roots         []string
	config, state string
	uuid          string
	instance      string
}

func (a *app) serve() *cobra.Command {
	var o serveOptions
	c := &cobra.Command{
		Use:   "serve",
		Short: "answer engines (run by systemd)",
		Long:  serveHelp,
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, other := range []string{"gpu", "socket"} {
				if cmd.Flags().Changed(other) {
					//diag usage OPTION
					// These options choose an instance for commands that ask one. The daemon does not take them. Start it
					// with `--instance` and `--listen`.
					return usage("serve: --%s is for commands that ask an instance; give --instance and --listen", other)
				}
			}
			if err := checkInstance("--instance", o.instance); err != nil {
				return err
			}
			return a.runServe(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.listen, "listen", nil, "listen on a socket at `PATH` instead of those that systemd passes (may repeat)")
	f.StringArrayVar(&o.draft, "listen-draft", nil, "likewise at `PATH`, for draft models")
	f.StringVar(&o.device, "device", "", "`DEVICE` that keeps the weights: host, a GPU by number or uuid, or hip:N for an AMD GPU (default: as the instance is named)")
	f.StringArrayVar(&o.roots, "root", nil, "a model `DIRECTORY`, or a folder of them (may repeat)")
	f.StringVar(&o.config, "config", "", "configuration `FILE`, instead of the system's and the user's")
	f.StringVar(&o.state, "state", "", "`FOLDER` of the manifest and the index (default: below $XDG_STATE_HOME)")
	f.StringVar(&o.uuid, "uuid", "", "the device's `UUID`, which engines compare with their own")
	f.StringVar(&o.instance, "instance", place.Host, "`NAME` of this instance")
	return c
}

func (a *app) runServe(ctx context.Context, o serveOptions) (err error) {
	if o.device == "" {
		o.device = o.instance
	}
	state, err := a.stateDir(o)
	if err != nil {
		return err
	}
	at := place.Find(a.sysroot, a.env, o.device)
	if o.uuid == "" {
		o.uuid = at.UUID
	}
	if err := fd.Lend(); err != nil {
		return err
	}
	// Go ends a program that can't write its log. systemd takes that for a normal end: it
	// would not start the daemon again, nor keep its descriptors.
	signal.Ignore(unix.SIGPIPE)
	if a.env("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if o.config != "" {
		o.config = absolute([]string{o.config})[0] // messages show this path
	}
	level := new(slog.LevelVar)
	queue := logqueue.New(a.err, logqueue.Loss(a.env))
	a.err, a.flush = queue, func() { _ = queue.Close(flushTime) } // a reader that doesn't read gets nothing
	log := slog.New(logqueue.Handler(queue, a.env, level))
	notifier, err := activation.NewNotifier()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, notifier.Close()) }()
	in, err := listeners.Open(absolute(o.listen), absolute(o.draft))
	switch {
	case errors.Is(err, listeners.ErrNone):
		//diag starting
		// `wcache serve` was started by hand without `--listen`, or by a unit without its socket
		// unit. Give `--listen`, or start the socket unit. The exit status is 78.
		return &hinted{
			err:  errors.New("serve: no socket was passed"),
			hint: fmt.Sprintf("systemctl --user enable --now wcache@%s.socket, unless this is root, or give --listen PATH", o.instance),
			exit: exitConfig,
		}
	case err != nil:
		return err
	}
	defer in.Release()
	x, indexPath, manifestPath := index.New(index.Options{}), filepath.Join(state, "index.json"), filepath.Join(state, "manifest.toml")
	defer x.Close()
	s, err := daemon.New(daemon.Options{
		Instance: o.instance, Device: at.Device, GPU: at.GPU, AMD: at.AMD, Legacy: at.Legacy, DeviceErr: at.Err, UUID: o.uuid, Version: ownVersion(),
		Configure: func() (config.Config, error) {
			c, err := configuration(a.env, o.config, o.instance)
			c.Roots = append(c.Roots, absolute(o.roots)...)
			if err == nil {
				_ = level.UnmarshalText([]byte(c.LogLevel)) // configuration checks it
			}
			return c, err
		},
		Index: x, IndexPath: indexPath, Manifest: manifestPath,
		Loader:       loader.Options{Command: []string{"/proc/self/exe", "load"}, Stderr: queue, Env: at.Env},
		Health:       loader.Options{Command: []string{"/proc/self/exe", "probe", "--brief"}, Stderr: queue},
		Env:          a.env,
		Log:          log,
		LogProblem:   queue.Problem,
		Store:        fdStore(notifier, in.Kept),
		CheckSegment: at.Check,
		Activated:    len(o.listen)+len(o.draft) == 0,
		Status:       func(text string) { _ = notifier.Status(text) }, // only a display
	})
	if err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	defer signal.Stop(hangup)
	go reload(ctx, hangup, s, notifier, log)
	s.Recover(in.Kept)
	// Not before the weights are restored: engines wait at the sockets meanwhile.
	if err := notifier.Ready(); err != nil {
		return err
	}
	ping := func(ctx context.Context) error {
		_, err := client.Do(ctx, control.Path(in.Listeners[0].Addr().String()), control.Request{Method: control.MethodPing}, nil)
		return err
	}
	defer notifier.Watch(ctx, ping, log)()
	log.Info("serving", "instance", o.instance, "version", ownVersion(), "sockets", len(in.Listeners))
	err = s.Serve(ctx, in.Listeners)
	return errors.Join(err, notifier.Stopping())
}

// fdStore is the fd store with its descriptors, nil without a service manager.
func fdStore(n *activation.Notifier, kept []daemon.Kept) cache.Store {
	if n == nil {
		return nil
	}
	var names []string
	for _, k := range kept {
		names = append(names, k.Name)
	}
	return activation.NewFDStore(n, names...)
}

// reload reads the configuration again with each signal, until ctx is done.
func reload(ctx context.Context, hangup <-chan os.Signal, s *daemon.Server, n *activation.Notifier, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			err := errors.Join(n.Reloading(), s.Reload(), n.Ready())
			if err != nil {
				//diag starting
				// A reload found an error in the configuration, which the line gives. Correct the
				// file and reload the service again.
				log.Error("configuration is not used: what is held is served, and nothing is loaded", "err", err)
				continue
			}
			log.Info("configuration read again")
		}
	}
}

// stateDir is the folder for files that outlive a daemon.
func (a *app) stateDir(o serveOptions) (string, error) {
	if o.state != "" {
		return absolute([]string{o.state})[0], nil
	}
	path, err := manifest.Path(a.env, o.instance)
	if err != nil {
		return "", &hinted{err: err, hint: "set HOME or XDG_STATE_HOME, or give --state FOLDER", exit: exitConfig}
	}
	return filepath.Dir(path), nil
}
