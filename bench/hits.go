// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/hungfs"
)

// hits measures get_state of a held model, with few and with many models below the roots,
// and during several kinds of activity there.
func (b *bench) hits(ctx context.Context) error {
	fmt.Fprintln(os.Stderr, "bench: making 2000 model directories")
	t, err := plantTree(ctx, filepath.Join(b.dir, "tree"))
	if err != nil {
		return err
	}
	unix.Sync() // else writing it back disturbs the measurements
	request := filepath.Join(b.dir, "get_state-small")
	if err := requestFor(t.asked, request); err != nil {
		return err
	}
	for _, m := range []struct {
		models int
		roots  []string
	}{{1, []string{t.asked}}, {100, []string{t.asked, t.few}}, {2000, []string{t.asked, t.few, t.many}}} {
		for _, stage := range []func() (*scene, error){t.quiet, t.hung, t.downloading} {
			h := &hitting{bench: b, asked: t.asked, request: request, models: m.models}
			if err := h.measure(ctx, stage, m.roots); err != nil {
				return err
			}
		}
	}
	return b.hungFromStart(ctx, t, request)
}

// hitting measures one service.
type hitting struct {
	*bench
	asked   string // the model
	request string // file of the get_state for it
	models  int
	scene   *scene
	service *service
}

func (h *hitting) measure(ctx context.Context, stage func() (*scene, error), roots []string) (err error) {
	if h.scene, err = stage(); err != nil {
		return h.without(err)
	}
	if h.service, err = h.start(false, slices.Concat(roots, h.scene.roots)...); err != nil {
		return errors.Join(err, h.scene.end())
	}
	// First end the hang: the service may wait for it.
	defer func() { err = errors.Join(err, h.scene.end(), h.service.stop()) }()
	if _, err := h.service.warm(ctx, h.asked); err != nil {
		return err
	}
	for _, served := range []bool{false, true} {
		if err := h.untilServed(ctx, served); err != nil {
			return err
		}
	}
	if err := h.scene.begin(); err != nil {
		return err
	}
	if err := h.alone(ctx); err != nil {
		return err
	}
	for _, atOnce := range []int{1, 64} {
		for _, served := range []bool{false, true} {
			if err := h.cell(ctx, atOnce, served); err != nil {
				return err
			}
		}
	}
	return nil
}

// what names the rows of a service.
func (h *hitting) what() string {
	s := ""
	if h.models > 1 {
		s = "s"
	}
	return fmt.Sprintf("%d model%s, %s", h.models, s, h.scene.name)
}

// without notes a scene that this machine can't produce.
func (h *hitting) without(err error) error {
	var not *hungfs.Unavailable
	if !errors.As(err, &not) {
		return err
	}
	h.add(fmt.Sprintf("hit, models: %d, a root hangs", h.models), "not measured: "+not.Error(), "", true)
	return nil
}

func (h *hitting) launch(served bool) launch {
	l := launch{socket: h.service.socket, request: h.request}
	if served {
		l.served = h.asked
	}
	return l
}

// kind describes what sort of engine asks.
func kind(served bool) string {
	if served {
		return "vllm serve"
	}
	return "a program"
}

// untilServed asks until the service has read everything that it needs for an answer, or
// for some seconds. It asks as often as vLLM does.
func (h *hitting) untilServed(ctx context.Context, served bool) error {
	for range 20 {
		list, _, err := h.ask(1, 1, h.launch(served))
		if err != nil || list[0].Kind == granted {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	return nil
}

// ask starts n engines and makes them ask, some at once. It gives the CPU time that this
// cost the service. It stops early if they all waited in vain.
func (h *hitting) ask(n, atOnce int, l launch) (list []answer, cpu time.Duration, err error) {
	e, err := startEngines(n, l)
	defer func() { err = errors.Join(err, e.end()) }()
	if err != nil {
		return nil, 0, err
	}
	before, err := h.service.cpu()
	if err != nil {
		return nil, 0, err
	}
	for i := 0; i < n; i += atOnce {
		some, err := e.ask(i, i+atOnce)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, some...)
		if !heard(some) {
			break
		}
	}
	after, err := h.service.cpu()
	return list, after - before, err
}

// heard reports whether any engine got a reply.
func heard(list []answer) bool {
	return slices.ContainsFunc(list, func(a answer) bool { return a.Kind != silent })
}

// cell measures one way of asking: 256 requests, or as many as there is time for. The CPU
// time is the daemon's per request.
func (h *hitting) cell(ctx context.Context, atOnce int, served bool) error {
	const enough, processes, limit = 256, 64, 10 * time.Second
	var list []answer
	var cpu time.Duration
	for begin := time.Now(); len(list) < enough && time.Since(begin) < limit; {
		if err := ctx.Err(); err != nil {
			return err
		}
		some, took, err := h.ask(processes, atOnce, h.launch(served))
		if err != nil {
			return err
		}
		list, cpu = append(list, some...), cpu+took
		if !heard(some) {
			break
		}
	}
	text, half := words(list)
	text += fmt.Sprintf("; %.2f ms of CPU", float64(cpu.Microseconds())/1e3/float64(len(list)))
	if h.scene.seen != nil && !h.scene.seen() {
		text += ", the service didn't look there"
	}
	if atOnce == 1 {
		h.add(fmt.Sprintf("hit, %s: one engine, %s", h.what(), kind(served)), text, "p50 under 1 ms", half < 1)
		return nil
	}
	h.add(fmt.Sprintf("hit, %s: %d engines at once, %s", h.what(), atOnce, kind(served)), text, "", true)
	return nil
}

// words tells the middle and the slow end of answers; half is their median in ms.
func words(list []answer) (text string, half float64) {
	var times sample
	count := make(map[answerKind]int)
	for _, a := range list {
		times.addTime(a.Took)
		count[a.Kind]++
	}
	half = times.median()
	text = fmt.Sprintf("p50 %s, p99 %s in %d", atMost(half), atMost(times.at(0.99)), len(list))
	if n := count[refused]; n > 0 {
		text += fmt.Sprintf(", %d refused", n)
	}
	if n := count[silent]; n > 0 {
		text += fmt.Sprintf(", %d without a reply", n)
	}
	return text, half
}

// atMost writes a time in ms, as a limit if it reached patience.
func atMost(ms float64) string {
	if ms >= float64(patience.Milliseconds()) {
		return fmt.Sprintf("over %v", patience)
	}
	return fmt.Sprintf("%.2f ms", ms)
}

// alone measures what a service that knows many models does while no engine asks.
func (h *hitting) alone(ctx context.Context) error {
	if h.models < 2000 {
		return nil
	}
	const long = 5 * time.Second
	before, err := h.service.cpu()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(long):
	}
	after, err := h.service.cpu()
	if err != nil {
		return err
	}
	h.add(fmt.Sprintf("CPU time of the daemon that nobody asks, %s", h.what()),
		fmt.Sprintf("%.1f %% of a core", 100*(after-before).Seconds()/long.Seconds()), "", true)
	return nil
}

// hungFromStart asks a service that could never read one of its roots.
func (b *bench) hungFromStart(ctx context.Context, t *tree, request string) error {
	for _, served := range []bool{false, true} {
		if err := ctx.Err(); err != nil {
			return err
		}
		what := "first request, a root hangs from the start: " + kind(served)
		list, err := b.firstHung(t, request, served)
		var not *hungfs.Unavailable
		if errors.As(err, &not) {
			b.add(what, "not measured: "+not.Error(), "", true)
			return nil
		}
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s after %.2f s", list[0].Kind, list[0].Took.Seconds())
		b.add(what, text, fmt.Sprintf("a reply in %v", patience), list[0].Kind != silent)
	}
	return nil
}

func (b *bench) firstHung(t *tree, request string, served bool) (list []answer, err error) {
	scene, err := t.hung()
	if err != nil {
		return nil, err
	}
	if err := scene.begin(); err != nil {
		return nil, errors.Join(err, scene.end())
	}
	s, err := b.start(false, append(scene.roots, t.asked)...)
	if err != nil {
		return nil, errors.Join(err, scene.end())
	}
	defer func() { err = errors.Join(err, scene.end(), s.stop()) }()
	h := &hitting{bench: b, asked: t.asked, request: request, service: s}
	list, _, err = h.ask(1, 1, h.launch(served))
	return list, err
}
