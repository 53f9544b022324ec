// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/wcache/wcache/control"
)

// show prints a status.
func (a *app) show(s control.Status) error {
	if a.json {
		return a.printJSON(s)
	}
	screen{out: a.out, palette: a.palette(a.out), now: time.Now(), notes: a.notes(s)}.status(s)
	return nil
}

// notes are the remarks below a status, from errors to advice.
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

// goesAtLogout reports whether the user's manager runs the instance; that manager ends with
// the last session unless the user lingers.
func (a *app) goesAtLogout(socket string) bool {
	folder, err := filepath.EvalSymlinks(filepath.Dir(socket)) // the path may be spelled with /var/run
	if err != nil || !strings.HasPrefix(folder+"/", fmt.Sprintf("/run/user/%d/", os.Getuid())) {
		return false
	}
	_, err = os.Stat("/var/lib/systemd/linger/" + a.userName())
	return err != nil
}

// drawInto writes a status as show does, but JSON as one line.
func (a *app) drawInto(b *bytes.Buffer, s control.Status) {
	if a.json {
		b.WriteString(jsonLine(s))
		return
	}
	screen{out: b, palette: a.palette(a.out), now: time.Now(), notes: a.notes(s)}.status(s)
}
