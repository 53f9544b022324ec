// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
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
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
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
	f.IntVar(&w.TPSize, "tp", 1, "tensor-parallel size")
	f.IntVar(&w.TPRank, "rank", 0, "tensor-parallel rank")
	f.IntVar(&w.PPSize, "pp", 1, "pipeline-parallel size")
	f.IntVar(&w.PPRank, "pp-rank", 0, "pipeline-parallel rank")
	f.StringVar(&w.DType, "dtype", "", "element type, such as bfloat16 (default: as the model says)")
	f.StringVar(&w.Revision, "revision", "", "revision of a model id")
	f.StringVar(&w.Release, "vllm-version", "", "version of the engine (default: the newest that is known)")
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
	show := func(control.Reply) {}
	end := func() {}
	if terminal(a.err) && !a.json && !a.quiet {
		begun := false
		show = func(r control.Reply) {
			if r.Progress != nil && r.Progress.Total > 0 {
				begun = true
				fmt.Fprintf(a.err, "\r%s", bar(*r.Progress, filepath.Base(w.Model)))
			}
		}
		end = func() {
			if begun {
				fmt.Fprint(a.err, "\r\x1b[K")
			}
		}
	}
	request := control.Request{Method: control.MethodWarm, Warm: &w}
	reply, err := a.ask(cmd.Context(), request, show)
	var no *control.Error
	if errors.As(err, &no) && no.Code == control.CodeNotRunning {
		// Unlike all else this is meant to start an idle instance.
		if err = client.Start(cmd.Context(), a.engineSocket()); err == nil {
			reply, err = a.ask(cmd.Context(), request, show)
		}
	}
	end()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(reply.Entry)
	}
	e := reply.Entry
	rate := ""
	if e.LoadSeconds > 0 {
		rate = fmt.Sprintf(", %s/s", size(int64(float64(e.Bytes)/e.LoadSeconds)))
	}
	took := time.Duration(e.LoadSeconds * float64(time.Second)).Round(time.Millisecond)
	fmt.Fprintf(a.out, "%.12s   %s   %s in %s%s\n", e.Key, e.Model, size(e.Bytes), took, rate)
	return nil
}

// bar draws a load's progress in a line.
func bar(p control.Progress, name string) string {
	const width = 30
	done := min(int(width*p.Done/p.Total), width)
	rate := ""
	if p.Seconds > 0 {
		rate = size(int64(float64(p.Done)/p.Seconds)) + "/s"
	}
	return fmt.Sprintf("%s [%s%s] %3d %% of %s, %s\x1b[K", name, strings.Repeat("#", done), strings.Repeat(".", width-done), 100*p.Done/p.Total, size(p.Total), rate)
}
