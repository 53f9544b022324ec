// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/activation"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/daemon"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/weights"
)

const serveHelp = `Answer engines: run by systemd, which passes the sockets, or with --listen.

It stays up and answers with the reason where it can't do something. SIGHUP reads
the configuration again, SIGTERM ends it and frees what it holds.`

// Names of the descriptors that the socket units pass.
const (
	nameTarget = "wcache"
	nameDraft  = "wcache-draft"
)

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
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runServe(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.listen, "listen", nil, "listen on this socket instead of those that systemd passes (may repeat)")
	f.StringArrayVar(&o.draft, "listen-draft", nil, "likewise, for draft models")
	f.StringVar(&o.device, "device", "", "where weights are kept: host, or a GPU by number or uuid (default: as the instance is named)")
	f.StringArrayVar(&o.roots, "root", nil, "a model directory, or a folder of them (may repeat)")
	f.StringVar(&o.config, "config", "", "configuration file, instead of the system's and the user's")
	f.StringVar(&o.state, "state", "", "folder of the manifest and the index (default: below $XDG_STATE_HOME)")
	f.StringVar(&o.uuid, "uuid", "", "the device's uuid, which engines compare with their own")
	f.StringVar(&o.instance, "instance", deviceHost, "name of this instance")
	return c
}

func (a *app) runServe(ctx context.Context, o serveOptions) (err error) {
	if o.device == "" {
		o.device = o.instance
	}
	at := placeOf(o.device, a.env)
	if o.uuid == "" {
		o.uuid = at.uuid
	}
	if err := lend(); err != nil {
		return err
	}
	level := new(slog.LevelVar)
	log := slog.New(logHandler(a.err, a.env, level))
	notifier, err := activation.NewNotifier()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, notifier.Close()) }()
	listeners, kept, release, err := sockets(o, log)
	if err != nil {
		return err
	}
	defer release()
	index, indexPath, manifestPath := weights.NewIndex(nil), filepath.Join(a.stateDir(o), "index.json"), filepath.Join(a.stateDir(o), "manifest.toml")
	if err := index.Load(indexPath); err != nil {
		log.Warn("index of model directories starts anew", "err", err)
	}
	s := daemon.New(daemon.Options{
		Instance: o.instance, Device: at.device, GPU: at.gpu, DeviceErr: at.err, UUID: o.uuid, Version: ownVersion(),
		Configure: func() (config.Config, error) {
			c, err := configuration(a.env, o.config, o.instance)
			c.Roots = append(c.Roots, absolute(o.roots)...)
			if err == nil {
				_ = level.UnmarshalText([]byte(c.LogLevel)) // configuration checks it
			}
			return c, err
		},
		Index: index, IndexPath: indexPath, Manifest: manifestPath,
		Loader:       loader.Options{Command: []string{"/proc/self/exe", "load"}, Stderr: a.err, Env: at.env},
		Env:          a.env,
		Log:          log,
		Store:        newStore(notifier, kept),
		CheckSegment: at.check,
		Activated:    len(o.listen)+len(o.draft) == 0,
		Status:       func(text string) { _ = notifier.Status(text) }, // only a display
	})
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	defer signal.Stop(hangup)
	go reload(ctx, hangup, s, notifier, log)
	if err := notifier.Ready(); err != nil {
		return err
	}
	s.Recover(kept)
	stopWatchdog := watchdog(ctx, notifier, control.Path(own(listeners)), log)
	defer stopWatchdog()
	log.Info("serving", "instance", o.instance, "version", ownVersion(), "sockets", len(listeners))
	err = s.Serve(ctx, listeners)
	return errors.Join(err, notifier.Stopping())
}

func reload(ctx context.Context, hangup <-chan os.Signal, s *daemon.Server, n *activation.Notifier, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			err := errors.Join(n.Reloading(), s.Reload(), n.Ready())
			if err != nil {
				log.Error("configuration is not read again, the old one stays", "err", err)
				continue
			}
			log.Info("configuration read again")
		}
	}
}

func (a *app) stateDir(o serveOptions) string {
	if o.state != "" {
		return o.state
	}
	return filepath.Dir(manifest.Path(a.env, o.instance))
}

// configuration reads the file that is given, else those of the system and the user.
func configuration(env func(string) string, file, instance string) (config.Config, error) {
	paths := config.Paths(env)
	if file != "" {
		if _, err := os.Stat(file); err != nil {
			return config.Config{}, fmt.Errorf("read configuration: %w", err)
		}
		paths = []string{file}
	}
	return config.Load(paths, instance, env)
}

func absolute(paths []string) []string {
	var list []string
	for _, p := range paths {
		if abs, err := filepath.Abs(p); err == nil {
			p = abs
		}
		list = append(list, p)
	}
	return list
}

// sockets are what the server accepts on: those that systemd passed, or those of
// the command line, and a control socket beside the first. The server closes the
// listeners; release, called after that, gives up their locks.
func sockets(o serveOptions, log *slog.Logger) (list []daemon.Listener, kept []daemon.Kept, release func(), err error) {
	var locks []io.Closer
	release = func() {
		for _, l := range locks {
			_ = l.Close() // a lock that isn't closed ends with the process
		}
	}
	defer func() {
		if err != nil {
			for _, l := range list {
				_ = l.Close() // the first error is the one to tell
			}
			for _, k := range kept {
				_ = k.FD.Close()
			}
			release()
		}
	}()
	bind := func(path string, role daemon.Role) error {
		l, lock, err := daemon.Listen(path)
		if err != nil {
			return err
		}
		locks = append(locks, lock)
		list = append(list, daemon.Listener{UnixListener: l, Role: role})
		return nil
	}
	for _, p := range absolute(o.listen) {
		if err := bind(p, daemon.Target); err != nil {
			return list, kept, release, err
		}
	}
	for _, p := range absolute(o.draft) {
		if err := bind(p, daemon.Draft); err != nil {
			return list, kept, release, err
		}
	}
	if len(list) == 0 {
		if list, kept, err = passed(); err != nil {
			return list, kept, release, err
		}
		for _, l := range list {
			if lock, err := daemon.Lock(l.Addr().String()); err == nil {
				locks = append(locks, lock)
			} else {
				log.Warn("engines may reach another daemon", "err", err)
			}
		}
	}
	if len(list) == 0 {
		return list, kept, release, &hinted{
			err:  errors.New("serve: no socket was passed"),
			hint: "systemctl --user enable --now wcache@0.socket, or give --listen PATH",
			exit: exitConfig,
		}
	}
	return list, kept, release, bind(control.Path(own(list)), daemon.Control)
}

// own is the socket beside which the control socket lies: the first for target
// models, which is the one of the unit itself. Those of drop-ins come after it.
func own(list []daemon.Listener) string {
	for _, l := range list {
		if l.Role == daemon.Target {
			return l.Addr().String()
		}
	}
	return list[0].Addr().String()
}

// passed takes what came in LISTEN_FDS: sockets by their names, and all else as
// what an earlier process has left in the fd store.
func passed() (list []daemon.Listener, kept []daemon.Kept, err error) {
	files, err := activation.Files()
	if err != nil {
		return nil, nil, err
	}
	roles := map[string]daemon.Role{nameTarget: daemon.Target, nameDraft: daemon.Draft}
	for _, f := range files {
		role, ok := roles[f.Name]
		if !ok {
			kept = append(kept, daemon.Kept{Name: f.Name, FD: f.FD})
			continue
		}
		l, lerr := f.Listener()
		if lerr != nil {
			err = errors.Join(err, lerr)
			continue
		}
		list = append(list, daemon.Listener{UnixListener: l, Role: role})
	}
	return list, kept, err
}
