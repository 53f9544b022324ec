// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/explain"
	"github.com/wcache/wcache/resolve"
)

// explainLast says why the last requests were not answered from memory.
func (a *app) explainLast(ctx context.Context) error {
	reply, err := a.ask(ctx, control.Request{Method: control.MethodMisses}, nil)
	var no *control.Error
	switch {
	case errors.As(err, &no) && no.Code == control.CodeNotRunning && a.json && a.waits():
		// The instance is idle and has no record; the output has the same form.
		return errors.Join(a.printJSON(map[string]any{"schema": outputSchema, "misses": []string{}}), &silent{exitNotRunning})
	case err != nil:
		return a.notServing(err)
	}
	list := explain.Misses(reply.Misses)
	if a.json {
		return a.printJSON(map[string]any{"schema": outputSchema, "misses": list})
	}
	if len(list) == 0 {
		say(a.out, "every request of an engine so far was answered from memory\n")
		return nil
	}
	a.printMiss(list[0], time.Now())
	if rest := list[1:]; len(rest) > 0 {
		say(a.out, "\n")
		a.printEarlier(rest, time.Now())
	}
	return nil
}

func (a *app) printMiss(m explain.Miss, now time.Time) {
	p := a.palette(a.out)
	styles := map[string]style{control.MissRefused: bad, control.MissFailed: bad}
	var head table
	head.add(strong.cell("request"), append(plain.cell(fmt.Sprintf("%s, %s: ", asker(m.Miss), ago(now.Sub(m.Time)))), styles[m.Reason].cell(outcome(m.Reason))...))
	head.texts(plain, "key", fmt.Sprintf("%.12s%s%s%svLLM %s", m.Fingerprint.ID(), gap, rank(m.Fingerprint), gap, m.Fingerprint.Str("vllm_version")))
	for _, dir := range m.Directories {
		head.texts(plain, "directory", dir)
	}
	if m.Sure != "" {
		head.texts(plain, "sure by", resolve.Sure(m.Sure).Text())
	}
	if m.Held != nil {
		head.texts(plain, "held", fmt.Sprintf("%.12s%s%s%s%s", m.Held.Key, gap, rank(m.Held.Fingerprint), gap, m.Held.Model))
	}
	if m.Message != "" {
		head.texts(plain, "because", told(m.Miss))
	}
	if m.Hint != "" {
		head.texts(plain, "mend", m.Hint)
	}
	head.write(a.out, p)
	if len(m.Differences) == 0 {
		return
	}
	say(a.out, "\n")
	var t table
	t.texts(faint, "FIELD", "ENGINE", "CACHE", "DIRECTORY", "CHANGED BY")
	for _, d := range m.Differences {
		held, directory := "-", "-"
		if m.Held != nil {
			held = word(d.Held)
		}
		if d.Decided {
			directory = word(d.Directory)
		}
		t.add(strong.cell(d.Field), plain.cell(word(d.Engine)), plain.cell(held), plain.cell(directory), plain.cell(d.Option))
	}
	t.write(a.out, p)
}

// printEarlier lists the requests before the last.
func (a *app) printEarlier(list []explain.Miss, now time.Time) {
	var t table
	t.texts(faint, "BEFORE", "ENGINE", "KEY", "WHAT", "FIELDS")
	for _, m := range list {
		var fields []string
		for _, d := range m.Differences {
			fields = append(fields, d.Field)
		}
		t.texts(plain, ago(now.Sub(m.Time)), asker(m.Miss), fmt.Sprintf("%.12s", m.Fingerprint.ID()), outcome(m.Reason), strings.Join(fields, ", "))
	}
	t.write(a.out, a.palette(a.out))
}
