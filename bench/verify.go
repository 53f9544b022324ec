// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
)

// verifying measures the cost of verification: loads with and without digests, alternately,
// then the comparison of held memory with its files, beside the highest speed at which a
// core hashes.
func (b *bench) verifying(ctx context.Context) (err error) {
	services := map[string]*service{}
	for _, verify := range []string{"off", "load"} {
		s, err := b.startWith(`verify = "`+verify+`"`, false, b.model)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		services[verify] = s
	}
	loads := map[string]*sample{"off": {}, "load": {}}
	for i := range 6 {
		for verify, s := range services {
			if err := ctx.Err(); err != nil {
				return err
			}
			l, err := s.load(ctx, b.model)
			if err != nil {
				return err
			}
			if i > 0 { // the machine's memory is touched for the first time
				loads[verify].add(l.took)
			}
		}
	}
	s := services["off"]
	if _, err := s.warm(ctx, b.model); err != nil {
		return err
	}
	var took sample
	for range 5 {
		v, err := s.verify(ctx)
		if err != nil {
			return err
		}
		took.add(v.Seconds)
	}
	b.add("load of 2 GiB without digests", loads["off"].spread("%.2f", "s"), "", true)
	b.add(`the same with verify = "load"`, loads["load"].spread("%.2f", "s"), "", true)
	b.add("comparison of 2 GiB in memory with its files, and sha256 of these", took.spread("%.2f", "s"), "", true)
	b.add("what a processor hashes", hashed().spread("%.2f", "GB/s"), "", true)
	return nil
}

// verify compares held memory with its files; everything must be equal.
func (s *service) verify(ctx context.Context) (*control.Verified, error) {
	r, err := client.Do(ctx, control.Path(s.socket), control.Request{Method: control.MethodVerify, Verify: &control.Verify{}}, nil)
	if err != nil {
		return nil, err
	}
	if len(r.Verified) != 1 || r.Verified[0].State != control.StateEqual {
		return nil, errors.New("verify: not one entry that is equal to its files")
	}
	return &r.Verified[0], nil
}

// hashed is the speed of sha256 on one processor.
func hashed() *sample {
	const block, blocks = 256 << 10, 1 << 10
	speed, mem := new(sample), make([]byte, block)
	for range 5 {
		begin, sum := time.Now(), sha256.New()
		for range blocks {
			sum.Write(mem)
		}
		speed.add(block * blocks / 1e9 / time.Since(begin).Seconds())
	}
	return speed
}
