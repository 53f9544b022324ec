// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/wcache/wcache/internal/logqueue"
)

// flushTime is how long the daemon's end waits for a log that isn't read.
const flushTime = 2 * time.Second

// newLogQueue is what the daemon logs to, its children's errors and its own last word
// included, instead of standard error: a pipe or a journal that nobody reads would stop
// every request at its first record.
func newLogQueue(out io.Writer, env func(string) string) *logqueue.Queue {
	return logqueue.New(out, func(dropped int) []byte {
		var line bytes.Buffer
		//diag serving
		// The program that reads the log, such as the journal, stopped reading for a while, and so
		// many lines are missing here. Requests went on, and `wcache status` showed it; see why the
		// reader was slow.
		slog.New(logHandler(&line, env, slog.LevelInfo)).Warn("log was not read, and records are dropped", "records", dropped)
		return line.Bytes()
	})
}

// logHandler writes a line a record. The journal keeps time and level itself: it
// gets the level as the prefix that sd-daemon(3) describes, and no time.
func logHandler(out io.Writer, env func(string) string, level slog.Leveler) slog.Handler {
	if env("JOURNAL_STREAM") == "" {
		return slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})
	}
	p := &prefixed{out: out}
	text := slog.NewTextHandler(p, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
				return slog.Attr{}
			}
			return a
		},
	})
	return &journal{Handler: text, out: p}
}

// journal puts a record's level before its line.
type journal struct {
	slog.Handler
	out *prefixed
}

// prefixed is where a record's line goes. It is locked from the prefix to the
// line's end.
type prefixed struct {
	mu     sync.Mutex
	out    io.Writer
	prefix string
}

func (p *prefixed) Write(line []byte) (int, error) {
	if _, err := p.out.Write(append([]byte(p.prefix), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// Handle writes the record with the prefix of its level: <7> debug, <6> info,
// <4> warning, <3> error.
func (j *journal) Handle(ctx context.Context, r slog.Record) error {
	j.out.mu.Lock()
	defer j.out.mu.Unlock()
	switch {
	case r.Level >= slog.LevelError:
		j.out.prefix = "<3>"
	case r.Level >= slog.LevelWarn:
		j.out.prefix = "<4>"
	case r.Level >= slog.LevelInfo:
		j.out.prefix = "<6>"
	default:
		j.out.prefix = "<7>"
	}
	return j.Handler.Handle(ctx, r)
}

// WithAttrs keeps the prefix.
func (j *journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &journal{Handler: j.Handler.WithAttrs(attrs), out: j.out}
}

// WithGroup keeps the prefix.
func (j *journal) WithGroup(name string) slog.Handler {
	return &journal{Handler: j.Handler.WithGroup(name), out: j.out}
}
