// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package logqueue

import (
	"bytes"
	"log/slog"
	"testing"
)

// Under the journal a line has its level as sd-daemon(3) writes it, and no time.
func TestJournalLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(Handler(&out, func(name string) string {
		return map[string]string{"JOURNAL_STREAM": "8:1"}[name]
	}, slog.LevelDebug))
	log.Debug("d")
	log.With("key", "k").Info("i")
	log.WithGroup("g").Warn("w", "time", "t")
	log.Error("two\nlines")
	want := "<7>msg=d\n<6>msg=i key=k\n<4>msg=w g.time=t\n<3>msg=\"two\\nlines\"\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}
