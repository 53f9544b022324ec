// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tree is a folder with roots, like those of a machine with many models.
type tree struct {
	asked  string // a model as large(), in small
	few    string // 99 other models
	many   string // 1900 more
	loads  string // folder of a model and of a hub cache into which files come
	remote string // one model, to be mounted
	nfs    string // empty, to mount it on
}

func plantTree(ctx context.Context, dir string) (*tree, error) {
	t := &tree{asked: filepath.Join(dir, "asked"), few: filepath.Join(dir, "few"), many: filepath.Join(dir, "many"),
		loads: filepath.Join(dir, "loads"), remote: filepath.Join(dir, "remote"), nfs: filepath.Join(dir, "nfs")}
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(t.nfs, 0o700)); err != nil {
		return nil, err
	}
	if err := small().write(t.asked, nil); err != nil {
		return nil, err
	}
	first := filepath.Join(t.few, "owner-0", "model-0")
	if err := tiny().write(first, map[string]string{"n": "0"}); err != nil {
		return nil, err
	}
	for _, name := range []string{"generation_config.json", "tokenizer.json", "tokenizer_config.json"} {
		if err := writeJSON(filepath.Join(first, name), nil); err != nil {
			return nil, err
		}
	}
	for i := 1; i < 1999; i++ {
		root := t.few
		if i >= 99 {
			root = t.many
		}
		model := filepath.Join(root, fmt.Sprintf("owner-%d", i/33), fmt.Sprintf("model-%d", i))
		if err := errors.Join(ctx.Err(), likeModel(first, model, i)); err != nil {
			return nil, err
		}
	}
	if err := tiny().write(filepath.Join(t.remote, "owner", "model"), map[string]string{"n": "remote"}); err != nil {
		return nil, err
	}
	return t, t.plantLoads(first)
}

// likeModel makes a model of links to another model's files, and of a first shard with its
// own header.
func likeModel(first, model string, n int) error {
	if err := os.MkdirAll(model, 0o700); err != nil {
		return err
	}
	list, err := os.ReadDir(first)
	if err != nil {
		return err
	}
	own := tiny().shard(0)
	for _, e := range list {
		if e.Name() != own {
			if err := os.Link(filepath.Join(first, e.Name()), filepath.Join(model, e.Name())); err != nil {
				return err
			}
		}
	}
	return writeShard(filepath.Join(model, own), tiny().tensors(0), map[string]string{"n": strconv.Itoa(n)})
}

// The downloads below loads.
const (
	growingShard = "folder/model-00002-of-00002.safetensors"
	growingBlob  = "hub/models--owner--model/blobs/"
)

func blob() string { return growingBlob + strings.Repeat("5e", 32) + ".incomplete" }

// plantLoads makes what two downloads leave before their last file is complete: one into a
// folder, one into a hub cache.
func (t *tree) plantLoads(first string) error {
	const snapshot, commit = "hub/models--owner--model/snapshots/", "0123456789abcdef0123456789abcdef01234567"
	for _, dir := range []string{"folder", growingBlob, snapshot + commit, "hub/models--owner--model/refs"} {
		if err := os.MkdirAll(filepath.Join(t.loads, dir), 0o700); err != nil {
			return err
		}
	}
	own := filepath.Join(t.loads, "folder", tiny().shard(0))
	if err := writeShard(own, tiny().tensors(0), map[string]string{"n": "folder"}); err != nil {
		return err
	}
	hashed := filepath.Join(t.loads, growingBlob, strings.Repeat("ab", 32))
	err := writeShard(hashed, tiny().tensors(0), map[string]string{"n": "hub"})
	for _, name := range []string{"config.json", "model.safetensors.index.json"} {
		err = errors.Join(err, os.Link(filepath.Join(first, name), filepath.Join(t.loads, "folder", name)),
			os.Link(filepath.Join(first, name), filepath.Join(t.loads, growingBlob, name)),
			os.Symlink("../../blobs/"+name, filepath.Join(t.loads, snapshot+commit, name)))
	}
	return errors.Join(err, os.Symlink("../../blobs/"+filepath.Base(hashed), filepath.Join(t.loads, snapshot+commit, tiny().shard(0))),
		os.WriteFile(filepath.Join(t.loads, "hub/models--owner--model/refs/main"), []byte(commit), 0o600))
}

// download makes both files grow until stop is called: by 1 MiB every 5 ms, of which only
// 4 KiB are written, to spare the disk.
func (t *tree) download() (stop func() error, err error) {
	var files [2]*os.File
	for i, name := range []string{growingShard, blob()} {
		if files[i], err = os.Create(filepath.Join(t.loads, name)); err != nil {
			return nil, err
		}
	}
	end, done := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		piece := make([]byte, 4<<10)
		for at := int64(0); ; at += 1 << 20 {
			select {
			case <-end:
				done <- nil
				return
			case <-tick.C:
			}
			for _, f := range files {
				if _, err := f.WriteAt(piece, at); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	return func() error {
		close(end)
		err := <-done
		for _, f := range files {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
		return err
	}, nil
}
