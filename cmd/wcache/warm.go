// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
)

const warmHelp = `Load a model now, as an engine with these options would have it loaded.

MODEL is a model directory, or a model id that is in the Hugging Face cache. An
engine finds it loaded if its key is the same: "wcache explain" shows a key.
An instance whose socket waits is started.`

func (a *app) warm() *cobra.Command {
	var w control.Warm
	c := &cobra.Command{
		Use:   "warm MODEL...",
		Short: "load models before an engine asks",
		Long:  warmHelp,
		Args:  arguments(1, -1),

		ValidArgsFunction: a.completeModels,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkRanks(w.TPSize, w.TPRank, w.PPSize, w.PPRank); err != nil {
				return err
			}
			for _, model := range args {
				one := w
				one.Model = modelArgument(model)
				if err := a.warmOne(cmd, one); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f := c.Flags()
	rankFlags(c, &w.TPSize, &w.TPRank, &w.PPSize, &w.PPRank)
	f.StringVar(&w.DType, "dtype", "", "element `TYPE`, such as bfloat16 (default: as the model says)")
	f.StringVar(&w.Revision, "revision", "", "`REVISION` of a model id")
	f.StringVar(&w.Release, "vllm-version", "", "`VERSION` of the engine (default: the newest that is known)")
	return c
}

func (a *app) warmOne(cmd *cobra.Command, w control.Warm) error {
	show, end := a.progress(filepath.Base(w.Model))
	request := control.Request{Method: control.MethodWarm, Warm: &w}
	reply, err := a.ask(cmd.Context(), request, show)
	var no *control.Error
	if errors.As(err, &no) && no.Code == control.CodeNotRunning {
		// Only this command may start an idle instance.
		if err = a.start(cmd.Context(), startTime); err == nil {
			reply, err = a.ask(cmd.Context(), request, show)
		}
	}
	end()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			Schema int `json:"schema"`
			*control.Entry
		}{outputSchema, reply.Entry})
	}
	e := reply.Entry
	rate := ""
	if e.LoadSeconds > 0 {
		rate = fmt.Sprintf(", %s/s", size(int64(float64(e.Bytes)/e.LoadSeconds)))
	}
	say(a.out, "%.12s   %s   %s in %s%s\n", e.Key, e.Model, size(e.Bytes), seconds(e.LoadSeconds), rate)
	return nil
}

// startTime is much more than a daemon takes to start and restore its weights.
const startTime = time.Minute

// start starts an instance whose socket waits, within a time limit.
func (a *app) start(ctx context.Context, limit time.Duration) error {
	//diag reaching TIME
	// `wcache warm` has connected, and the service manager has started no daemon that answers.
	// `journalctl --user -u wcache@INSTANCE.service` says why.
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it has not started within %v", limit))
	defer cancel()
	err := client.Start(ctx, a.engineSocket())
	if err != nil && ctx.Err() != nil && a.socket == "" {
		return &hinted{err: err, hint: fmt.Sprintf("systemctl --user status wcache@%s.service says why", a.gpu)}
	}
	return err
}
