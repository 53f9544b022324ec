// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/weights"
)

// maxChoices is more than the keys that a GPU has room for. The daemon chooses again
// for forgotten keys.
const maxChoices = 1000

// choices remembers the directory that was found for each key. Safe for concurrent use.
type choices struct {
	mu    sync.Mutex
	byKey map[string]resolve.Choice // by key ID
}

func (c *choices) get(key fingerprint.Key) (resolve.Choice, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	choice, ok := c.byKey[key.ID()]
	return choice, ok
}

func (c *choices) put(key fingerprint.Key, choice resolve.Choice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey == nil || len(c.byKey) >= maxChoices {
		c.byKey = make(map[string]resolve.Choice)
	}
	c.byKey[key.ID()] = choice
}

// finder finds the one model directory that a request means. Safe for concurrent use.
type finder struct {
	*base
	memory  *weights.Memory
	choices choices
}

// identify finds the one directory that an engine's key means: by the model that the
// engine's process was started with, or, if that isn't known, by the key, the
// configuration and the index. In the second case it first tries its last answer.
//
// Said reads which model the process was started with, nil if it doesn't say; began is
// when the process started.
func (f *finder) identify(ctx context.Context, key fingerprint.Key, began time.Time, said func() (*resolve.Started, error)) (resolve.Choice, error) {
	ctx, cancel := f.within(ctx)
	defer cancel()
	return beside(ctx, f.checks, func(ctx context.Context) (resolve.Choice, error) {
		o := f.options(f.configuration())
		o.Began = began
		started, err := said()
		if err != nil {
			return resolve.Choice{}, err
		}
		if started == nil {
			if choice, ok := f.choices.get(key); ok && choice.Still(o) {
				return choice, nil
			}
		}
		choice, err := resolve.Choose(ctx, o, key, started)
		if err == nil && started == nil {
			f.choices.put(key, choice)
		}
		return choice, err
	})
}

// options makes the options of a search from a configuration.
func (f *finder) options(c config.Config) resolve.Options {
	return resolve.Options{
		Index: f.o.Index, Roots: c.Roots, Env: f.o.Env, Pins: c.Pins, Strict: c.Identify == config.IdentifyStrict,
		Assume: c.Assume, CUDA: f.o.GPU && !f.o.AMD, Memory: f.memory,
	}
}

// pins are the pinned directories as absolute paths without links.
func (f *finder) pins(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	list := f.configuration().Pins
	return beside(ctx, f.checks, func(context.Context) ([]string, error) { return resolve.RealPins(list), nil })
}
