// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/control"
)

const statusHelp = `Show what an instance holds, for whom, and what is wrong.

Asking never starts the daemon: if it isn't running, that is said and the exit
status is 3. With --json the output has a schema number; fields are only added.

With --watch it is shown anew every second, until q, Ctrl-C or the daemon's end.
With --prometheus it is in the text format of Prometheus, for node_exporter's
textfile collector; a daemon that isn't running is wcache_up 0 and no error.`

func (a *app) status() *cobra.Command {
	var watch, prometheus bool
	c := &cobra.Command{
		Use:   "status",
		Short: "show what is held and for whom",
		Long:  statusHelp,
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case prometheus && (watch || a.json):
				//diag usage
				// `--prometheus` prints the state once in a format of its own. Leave out `--json`
				// and `--watch`.
				return usage("status: --prometheus is a form of its own, without --json and --watch")
			case prometheus:
				return a.metrics(cmd.Context())
			case watch:
				return a.watch(cmd.Context(), time.Second)
			}
			s, err := a.ownStatus(cmd.Context())
			if err != nil {
				return a.notServing(err)
			}
			return a.show(*s)
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it anew every second, until q or Ctrl-C")
	c.Flags().BoolVar(&prometheus, "prometheus", false, "in the text format of Prometheus")
	return c
}

// ownStatus asks the instance, and adds what only its client knows.
func (a *app) ownStatus(ctx context.Context) (*control.Status, error) {
	reply, err := a.ask(ctx, control.Request{Method: control.MethodStatus}, nil)
	if err != nil {
		return nil, err
	}
	if reply.Status == nil {
		return nil, errors.New("read status: the daemon sent none")
	}
	s := reply.Status
	s.Version.Client = ownVersion()
	s.Counts.Misses = everyReason(s.Counts.Misses) // an older daemon counts none
	return s, nil
}

// everyReason has a number for each reason of a miss.
func everyReason(misses map[string]int64) map[string]int64 {
	all := make(map[string]int64)
	for _, reason := range control.Reasons() {
		all[reason] = 0
	}
	maps.Copy(all, misses) // and those that a newer daemon knows
	return all
}

func (a *app) show(s control.Status) error {
	if a.json {
		return a.printJSON(s)
	}
	screen{out: a.out, palette: a.palette(a.out), now: time.Now(), notes: a.notes(s)}.status(s)
	return nil
}

// notes are what is worth saying below a status, from an error to advice.
func (a *app) notes(s control.Status) []string {
	notes := append([]string(nil), s.Problems...)
	if a.quiet {
		return notes
	}
	if s.Version.Daemon != s.Version.Client {
		notes = append(notes, fmt.Sprintf("daemon %s, client %s: %s", s.Version.Daemon, s.Version.Client, renewal(s)))
	}
	if len(s.Entries) > 0 && a.goesAtLogout(s.Socket) {
		notes = append(notes, "lingering is off: the weights go at your last logout (loginctl enable-linger)")
	}
	return notes
}

// notServing turns the error of asking into what is said of an instance that is
// idle: nothing runs while the socket waits, which is a normal state and yet exit
// status 3, as of systemctl status.
func (a *app) notServing(err error) error {
	var no *control.Error
	if !errors.As(err, &no) || no.Code != control.CodeNotRunning || !a.waits() {
		return err
	}
	if a.json {
		if err := a.printJSON(a.idle()); err != nil {
			return err
		}
	} else {
		say(a.out, "%s   idle: nothing is cached; the socket starts it on the first request\n", a.palette(a.out).paint(strong, a.name()))
	}
	return &silent{exitNotRunning}
}

// idle is the status of an instance that doesn't run.
func (a *app) idle() control.Status {
	return control.Status{
		Schema: control.Schema, Instance: a.gpu, State: "idle", Version: control.Version{Client: ownVersion()},
		Socket: a.engineSocket(), Problems: []string{}, Entries: []control.Entry{},
		Counts: control.Counts{Misses: everyReason(nil)},
	}
}

// goesAtLogout reports whether an instance is one of the user's manager, which
// ends with the last session unless it lingers.
func (a *app) goesAtLogout(socket string) bool {
	folder, err := filepath.EvalSymlinks(filepath.Dir(socket)) // which may be spelled as below /var/run
	if err != nil || !strings.HasPrefix(folder+"/", fmt.Sprintf("/run/user/%d/", os.Getuid())) {
		return false
	}
	_, err = os.Stat("/var/lib/systemd/linger/" + a.userName())
	return err != nil
}
