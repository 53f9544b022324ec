// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
)

const statusHelp = `Show what an instance holds, for whom, and what is wrong.

Asking never starts the daemon: if it isn't running, that is said and the exit
status is 3. With --json the output has a schema number; fields are only added.`

func (a *app) status() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "show what is held and for whom",
		Long:  statusHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := a.ask(cmd.Context(), control.Request{Method: control.MethodStatus}, nil)
			var no *control.Error
			if errors.As(err, &no) && no.Code == control.CodeNotRunning && client.Listening(a.engineSocket()) {
				return a.idle()
			}
			if err != nil {
				return err
			}
			s := *reply.Status
			s.Version.Client = ownVersion()
			if a.json {
				return a.printJSON(s)
			}
			return printStatus(a.out, s, time.Now())
		},
	}
}

// idle says that nothing runs while the socket waits, which is a normal state and
// yet exit status 3, as of systemctl status.
func (a *app) idle() error {
	if a.json {
		s := control.Status{
			Schema: control.Schema, Instance: a.gpu, State: "idle", Version: control.Version{Client: ownVersion()},
			Socket: a.engineSocket(), Problems: []string{}, Entries: []control.Entry{},
		}
		if err := a.printJSON(s); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.out, "%s   idle: nothing is cached; the socket starts it on the first request\n", a.name())
	}
	return &quiet{exitNotRunning}
}

func printStatus(out io.Writer, s control.Status, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintf(w, "wcache@%s\t%s, %s, pid %d\twcache %s\n", s.Instance, s.State, span(now.Sub(s.Since)), s.PID, s.Version.Daemon)
	fmt.Fprintf(w, "socket\t%s\n", s.Socket)
	fmt.Fprintf(w, "memory\t%s cached in %s memory\n", size(s.Bytes), s.Device.Kind)
	fmt.Fprintf(w, "requests\t%d from memory, %d loaded, %d failed, %d refused\n", s.Counts.Hits, s.Counts.Loads, s.Counts.Failed, s.Counts.Refused)
	if len(s.Entries) > 0 {
		fmt.Fprint(w, "\n")
		if err := w.Flush(); err != nil {
			return err
		}
		fmt.Fprint(w, "KEY\tMODEL\tRANK\tSIZE\tSTATE\tENGINES\tUSED\n")
	}
	for _, e := range s.Entries {
		fmt.Fprintf(w, "%.12s\t%s\t%s\t%s\t%s\t%d\t%s\n", e.Key, filepath.Base(e.Model), rank(e), size(e.Bytes), state(e), len(e.Engines), used(e, now))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(s.Problems) > 0 {
		fmt.Fprintln(out)
	}
	for _, p := range s.Problems {
		fmt.Fprintf(out, "# %s\n", p)
	}
	if s.Version.Daemon != s.Version.Client {
		fmt.Fprintf(out, "\n# daemon %s, client %s: systemctl --user restart wcache@%s.service keeps the weights\n", s.Version.Daemon, s.Version.Client, s.Instance)
	}
	return nil
}

// rank words an entry's part of its model, such as "tp 1/2".
func rank(e control.Entry) string {
	k := e.Fingerprint
	text := fmt.Sprintf("tp %d/%d", k.Int("tp_rank", 0), k.Int("tp_size", 1))
	if n := k.Int("pp_size", 1); n > 1 {
		text += fmt.Sprintf(" pp %d/%d", k.Int("pp_rank", 0), n)
	}
	return text
}

func state(e control.Entry) string {
	if p := e.Progress; p != nil && p.Total > 0 {
		return fmt.Sprintf("%s %d %%", e.State, 100*p.Done/p.Total)
	}
	if e.Pinned {
		return e.State + ", pinned"
	}
	return e.State
}

func used(e control.Entry, now time.Time) string {
	if p := e.Progress; p != nil && p.Seconds > 0 {
		return fmt.Sprintf("now, %s/s", size(int64(float64(p.Done)/p.Seconds)))
	}
	if d := now.Sub(e.Used); d >= time.Minute {
		return span(d) + " ago"
	}
	return "now"
}

// size words bytes with a unit that leaves one to four digits.
func size(bytes int64) string {
	n, unit := float64(bytes), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n < 1000 {
			break
		}
		n, unit = n/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", n, unit)
}

// span words a time as people say it.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}
