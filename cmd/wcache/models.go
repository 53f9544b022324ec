// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/index"
)

// configuration reads the given file, else those of the system and the user.
func configuration(env func(string) string, file, instance string) (config.Config, error) {
	paths := config.Paths(env)
	if file != "" {
		if _, err := os.Stat(file); err != nil {
			return config.Config{}, fmt.Errorf("read configuration: %w", err)
		}
		paths = []string{file}
	}
	return config.Load(paths, instance, env)
}

// absolute makes paths independent of the working directory.
func absolute(paths []string) []string {
	var list []string
	for _, p := range paths {
		if abs, err := filepath.Abs(p); err == nil {
			p = abs
		}
		list = append(list, p)
	}
	return list
}

// modelArgument makes a directory absolute, because the daemon has another working
// directory. It leaves a model id unchanged.
func modelArgument(model string) string {
	if st, err := os.Stat(model); err == nil && st.IsDir() {
		if abs, err := filepath.Abs(model); err == nil {
			return abs
		}
	}
	return model
}

// modelFolders are the folders in which the daemon looks for models. A broken
// configuration, which is reported elsewhere, names none.
func (a *app) modelFolders() []string {
	hubs := weights.HubCaches(a.env)
	c, err := configuration(a.env, "", a.gpu)
	if err != nil {
		return hubs
	}
	return append(append(c.Roots, c.Pins...), hubs...)
}

// models lists the models that are found in the daemon's folders until ctx is done.
func (a *app) models(ctx context.Context) []index.Model {
	x := index.New(index.Options{Once: true})
	defer x.Close()
	x.SetRoots(a.modelFolders())
	return x.Models(ctx)
}

// openModel opens a directory, or the directory of a model id. A broken configuration
// names no roots; it is reported elsewhere, unless the user named the file.
func (a *app) openModel(name, file string, roots []string) (*weights.Dir, error) {
	c, err := configuration(a.env, file, a.gpu)
	if err != nil && file != "" {
		return nil, err
	}
	path, _, err := weights.Locate(modelArgument(name), "", a.env, append(c.Roots, absolute(roots)...))
	if err != nil {
		return nil, err
	}
	return weights.Open(path)
}
