// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// firstConnection measures an idle service from the connection to its reply.
func (b *bench) firstConnection(ctx context.Context) error {
	frame, err := askMemory()
	if err != nil {
		return err
	}
	var times sample
	for range 21 {
		if err := ctx.Err(); err != nil {
			return err
		}
		s, err := b.start(true, b.model)
		if err != nil {
			return err
		}
		begin := time.Now()
		reply, _, err := exchange(s.socket, frame)
		times.addTime(time.Since(begin))
		if err == nil {
			_, err = decode(reply)
		}
		if err := errors.Join(err, s.stop()); err != nil {
			return err
		}
	}
	b.add("first connection of an idle service, get_memory", times.spread("%.1f", "ms"), "under 20 ms", times.median() < 20)
	return nil
}

// serving measures get_state of a held model, and the memory for holding it.
func (b *bench) serving(ctx context.Context) (err error) {
	s, err := b.start(false, b.model)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if _, err := s.warm(ctx, b.model); err != nil {
		return err
	}
	fresh, err := s.memory("VmRSS")
	if err != nil {
		return err
	}
	if err := b.getState(ctx, s); err != nil {
		return err
	}
	if err := b.together(ctx, s); err != nil {
		return err
	}
	used, err := s.memory("VmRSS")
	if err != nil {
		return err
	}
	const mb = 1e6
	b.add("memory (VmRSS) of the daemon, 2 GiB cached, after a load", fmt.Sprintf("%.1f MB", fresh/mb), "under 20 MB", fresh < 20*mb)
	b.add("the same after some 5000 requests", fmt.Sprintf("%.1f MB", used/mb), "under 20 MB", used < 20*mb)
	return nil
}

func (b *bench) getState(ctx context.Context, s *service) error {
	frame, err := os.ReadFile(b.request)
	if err != nil {
		return err
	}
	var half, most sample
	entries := 0
	for range 10 {
		var times sample
		for range 300 {
			reply, took, err := exchange(s.socket, frame)
			if err != nil {
				return err
			}
			times.addTime(took)
			if entries == 0 {
				r, err := decode(reply)
				if err != nil {
					return err
				}
				entries = len(r.Entries)
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		half.add(times.median())
		most.add(times.at(0.99))
	}
	b.add(fmt.Sprintf("get_state, %d entries, request to reply, p50", entries), half.spread("%.2f", "ms"), "under 1 ms", half.median() < 1)
	b.add("the same, p99", most.spread("%.2f", "ms"), "", true)
	return nil
}

// together compares the daemon's CPU time for engines that ask one after another with that
// for engines that ask at once. Each engine is a process and asks once.
func (b *bench) together(ctx context.Context, s *service) error {
	const n = 64
	var single, many, ratio sample
	for range 15 {
		if err := ctx.Err(); err != nil {
			return err
		}
		one, err := b.cost(s, n, 1)
		if err != nil {
			return err
		}
		all, err := b.cost(s, n, n)
		if err != nil {
			return err
		}
		single.addTime(one / n)
		many.addTime(all / n)
		ratio.add(float64(all) / float64(one))
	}
	b.add("CPU time of the daemon per get_state, one engine", single.spread("%.3f", "ms"), "", true)
	b.add("the same, 64 engines at once", many.spread("%.3f", "ms"), "", true)
	b.add("64 engines against one", ratio.spread("%.2f", "times"), "at most 1.2 times", ratio.median() <= 1.2)
	return nil
}

// cost is the daemon's CPU time for n engines of which some ask at once.
func (b *bench) cost(s *service, n, atOnce int) (took time.Duration, err error) {
	e, err := startEngines(n, launch{socket: s.socket, request: b.request})
	defer func() { err = errors.Join(err, e.end()) }()
	if err != nil {
		return 0, err
	}
	before, err := s.cpu()
	if err != nil {
		return 0, err
	}
	for i := 0; i < n; i += atOnce {
		list, err := e.ask(i, i+atOnce)
		if err != nil {
			return 0, err
		}
		if slices.ContainsFunc(list, func(a answer) bool { return a.Kind != granted }) {
			return 0, errors.New("measure CPU time: an engine was not given the model")
		}
	}
	after, err := s.cpu()
	return after - before, err
}

func (b *bench) add(what, measured, aim string, met bool) {
	b.results = append(b.results, result{what, measured, aim, met})
	fmt.Fprintf(os.Stderr, "bench: %s: %s\n", what, measured)
}
