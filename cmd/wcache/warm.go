// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	f.IntVar(&w.TPSize, "tp", 1, "tensor-parallel `SIZE`")
	f.IntVar(&w.TPRank, "rank", 0, "tensor-parallel `RANK`, from 0")
	f.IntVar(&w.PPSize, "pp", 1, "pipeline-parallel `SIZE`")
	f.IntVar(&w.PPRank, "pp-rank", 0, "pipeline-parallel `RANK`, from 0")
	f.StringVar(&w.DType, "dtype", "", "element `TYPE`, such as bfloat16 (default: as the model says)")
	f.StringVar(&w.Revision, "revision", "", "`REVISION` of a model id")
	f.StringVar(&w.Release, "vllm-version", "", "`VERSION` of the engine (default: the newest that is known)")
	return c
}

// modelArgument makes a directory absolute, since the daemon has another working
// directory, and leaves a model id alone.
func modelArgument(model string) string {
	if st, err := os.Stat(model); err == nil && st.IsDir() {
		if abs, err := filepath.Abs(model); err == nil {
			return abs
		}
	}
	return model
}

func (a *app) warmOne(cmd *cobra.Command, w control.Warm) error {
	show, end := a.progress(filepath.Base(w.Model))
	request := control.Request{Method: control.MethodWarm, Warm: &w}
	reply, err := a.ask(cmd.Context(), request, show)
	var no *control.Error
	if errors.As(err, &no) && no.Code == control.CodeNotRunning {
		// Unlike all else this is meant to start an idle instance.
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

// startTime is much more than a daemon takes to start, with all that it takes over.
const startTime = time.Minute

// start has an instance started whose socket waits, within its time.
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

// seconds words how long a load took.
func seconds(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.0f ms", s*1000)
	}
	return fmt.Sprintf("%.1f s", s)
}

// lineEvery is how often a load says how far it is where nothing can be drawn, in
// seconds.
const lineEvery = 10

// progress tells how far a load is: on a terminal by a bar, elsewhere by a line now
// and then. end takes the bar away.
func (a *app) progress(name string) (show func(control.Reply), end func()) {
	drawn, told := false, 0
	draws := terminal(a.err) && a.env("TERM") != "dumb"
	show = func(r control.Reply) {
		p := r.Progress
		switch {
		case p == nil || p.Total <= 0 || a.json || a.quiet:
		case draws:
			drawn = true
			say(a.err, "\r%s\x1b[K", bar(*p, name))
		case int(p.Seconds)/lineEvery > told:
			told = int(p.Seconds) / lineEvery
			say(a.err, "wcache: %s: %s\n", name, far(*p))
		}
	}
	end = func() {
		if drawn {
			say(a.err, "\r\x1b[K")
		}
	}
	return show, end
}

// bar draws a load's progress in a line.
func bar(p control.Progress, name string) string {
	const width = 30
	done := min(int(width*p.Done/p.Total), width)
	return fmt.Sprintf("%s [%s%s] %s", name, strings.Repeat("#", done), strings.Repeat(".", width-done), far(p))
}

// far words a load's progress.
func far(p control.Progress) string {
	if p.Waiting != "" {
		return "waits for " + p.Waiting
	}
	rate := ""
	if p.Seconds > 0 {
		rate = size(int64(float64(p.Done)/p.Seconds)) + "/s"
	}
	return fmt.Sprintf("%3d %% of %s, %s", 100*p.Done/p.Total, size(p.Total), rate)
}
