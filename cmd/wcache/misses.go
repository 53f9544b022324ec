// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/weights"
)

// unlike is a field in which a request differs from what was there for it.
type unlike struct {
	Field     string `json:"field"`
	Engine    any    `json:"engine"`
	Held      any    `json:"held"`      // null where nothing alike was held, or it has no such field
	Directory any    `json:"directory"` // null where it isn't decided by a directory's files
	Option    string `json:"option"`    // what changes it
	knows     bool   // the directory decides
}

// explainedMiss is a miss with what explains it.
type explainedMiss struct {
	control.Miss
	Differences []unlike `json:"differences"`
}

// explainLast tells why the last requests were not answered from memory.
func (a *app) explainLast(ctx context.Context) error {
	reply, err := a.ask(ctx, control.Request{Method: control.MethodMisses}, nil)
	var no *control.Error
	switch {
	case errors.As(err, &no) && no.Code == control.CodeNotRunning && a.json && a.waits():
		// Idle, and so without a record, which is in the form of one.
		return errors.Join(a.printJSON(map[string]any{"schema": outputSchema, "misses": []string{}}), &silent{exitNotRunning})
	case err != nil:
		return a.notServing(err)
	}
	list := make([]explainedMiss, 0, len(reply.Misses))
	for i, m := range reply.Misses {
		var files []fingerprint.Difference
		if i == 0 { // the directories of the others may have changed since
			files = fromDirectory(m)
		}
		list = append(list, explainedMiss{m, differences(m, files)})
	}
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

// differences are the fields that explain a miss: those in which what was held is
// another, and those in which the files of its directory say otherwise.
func differences(m control.Miss, files []fingerprint.Difference) []unlike {
	list := []unlike{}
	at := func(field string) *unlike {
		for i := range list {
			if list[i].Field == field {
				return &list[i]
			}
		}
		engine, _ := m.Fingerprint.Get(field)
		u := unlike{Field: field, Engine: engine, Option: fingerprint.OptionOf(field)}
		if m.Held != nil {
			u.Held, _ = m.Held.Fingerprint.Get(field)
		}
		list = append(list, u)
		return &list[len(list)-1]
	}
	if m.Held != nil {
		for _, field := range fingerprint.Compare(m.Fingerprint, m.Held.Fingerprint) {
			at(field)
		}
	}
	for _, d := range files {
		if d.Blame == fingerprint.Unknown {
			continue
		}
		u := at(d.Field)
		u.Directory, u.knows = d.Computed, true
	}
	if m.Field != "" {
		at(m.Field)
	}
	order := func(field string) int {
		return slices.IndexFunc(m.Fingerprint.Fields(), func(f fingerprint.Field) bool { return f.Name == field })
	}
	slices.SortStableFunc(list, func(x, y unlike) int { return order(x.Field) - order(y.Field) })
	return list
}

// fromDirectory compares a request with the directory that it was about: the one
// that has its headers, else the one of what was most like it.
func fromDirectory(m control.Miss) []fingerprint.Difference {
	paths := m.Directories
	if len(paths) == 0 && m.Held != nil {
		paths = []string{m.Held.Model}
	}
	if len(paths) == 0 {
		return nil
	}
	dir, err := weights.Open(paths[0])
	if err != nil { // gone since, which the message of the miss may say
		return nil
	}
	return fingerprint.Explain(m.Fingerprint, dir)
}

// outcomes are what became of a request, by its reason.
var outcomes = map[string]string{
	control.MissNew:     "was loaded: no such model was held",
	control.MissOptions: "was loaded: what was held has other options",
	control.MissLoading: "waited for a load that was under way",
	control.MissChanged: "was loaded again: the files have changed",
	control.MissRefused: "was refused: the engine loads by itself",
	control.MissFailed:  "failed, and may be asked for again",
}

func outcome(reason string) string {
	if text, ok := outcomes[reason]; ok {
		return text
	}
	return reason // of a newer daemon
}

// asker names who asked.
func asker(m control.Miss) string {
	name := m.Comm
	if name == "" {
		name = "an engine"
	}
	return fmt.Sprintf("%s (pid %d)", name, m.PID)
}

// told is what was said to the engine.
func told(m control.Miss) string {
	if m.Field != "" && m.Message != "" {
		return m.Field + ": " + m.Message
	}
	return m.Message
}

func (a *app) printMiss(m explainedMiss, now time.Time) {
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
		if d.knows {
			directory = word(d.Directory)
		}
		t.add(strong.cell(d.Field), plain.cell(word(d.Engine)), plain.cell(held), plain.cell(directory), plain.cell(d.Option))
	}
	t.write(a.out, p)
}

// printEarlier lists requests before the last.
func (a *app) printEarlier(list []explainedMiss, now time.Time) {
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
