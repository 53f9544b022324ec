// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"maps"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
)

// ask sends a control request to the instance. It never starts one, and gives up if the
// instance is silent.
func (a *app) ask(ctx context.Context, request control.Request, each func(control.Reply)) (*control.Reply, error) {
	return client.Asker{Socket: control.Path(a.engineSocket()), Patience: a.patience}.Do(ctx, request, each)
}

// ownStatus asks the instance for its status, and adds what only the client knows.
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

// everyReason adds a zero for each reason of a miss that has no number.
func everyReason(misses map[string]int64) map[string]int64 {
	all := make(map[string]int64)
	for _, reason := range control.Reasons() {
		all[reason] = 0
	}
	maps.Copy(all, misses) // and those that a newer daemon knows
	return all
}

// notServing handles the error of asking an idle instance: no daemon runs while the socket
// waits. That is a normal state, but the exit status is 3, as for systemctl status.
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
		Socket: a.engineSocket(), Problems: []string{}, Findings: []control.Problem{}, Entries: []control.Entry{},
		Counts: control.Counts{Misses: everyReason(nil)},
	}
}
