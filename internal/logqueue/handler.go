// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package logqueue

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
)

// Handler writes one line per record to out. If env says that the journal reads standard error,
// the line begins with the record's level as in sd-daemon(3), and has no time, which the
// journal adds itself.
func Handler(out io.Writer, env func(string) string, level slog.Leveler) slog.Handler {
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

// Loss makes, for [New], the record about dropped records, in the form of [Handler].
func Loss(env func(string) string) func(dropped int) []byte {
	return func(dropped int) []byte {
		var line bytes.Buffer
		//diag serving
		// The program that reads the log, such as the journal, stopped reading for a while, and this
		// number of lines is missing here. Requests went on, and `wcache status` showed it; see why
		// the reader was slow.
		slog.New(Handler(&line, env, slog.LevelInfo)).Warn("log was not read, and records are dropped", "records", dropped)
		return line.Bytes()
	}
}

// journal puts a record's level before its line.
type journal struct {
	slog.Handler
	out *prefixed
}

// prefixed is the output of a record's line. It is locked from the prefix to the end of the
// line.
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
