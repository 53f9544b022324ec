// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device/place"
	"github.com/wcache/wcache/internal/visible"
	"github.com/wcache/wcache/systemd/generator"
)

// completeTime is how long completion waits for a daemon.
const completeTime = time.Second

// completeKeys completes the held keys, with descriptions.
func (a *app) completeKeys(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	reply, err := a.ask(ctx, control.Request{Method: control.MethodStatus}, nil)
	if err != nil || reply.Status == nil { // nothing runs, and nothing is held
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var list []cobra.Completion
	for _, e := range reply.Status.Entries {
		key := e.Key[:min(len(e.Key), max(shortKey, len(typed)))]
		if e.State == "ready" && strings.HasPrefix(key, typed) {
			list = append(list, cobra.CompletionWithDesc(key, visible.Text(fmt.Sprintf("%s, %s, %s", modelName(e.Model), rank(e.Fingerprint), size(e.Bytes)))))
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeHeld completes any number of held keys, or directories if the word begins like
// one.
func (a *app) completeHeld(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if typed != "" && strings.ContainsRune("./~", rune(typed[0])) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return a.completeKeys(cmd, nil, typed)
}

// shortKey is how many digits of a key are shown, which is enough to distinguish keys.
const shortKey = 12

// completeModels completes the models of the Hugging Face cache and the directories of
// the configuration's roots, or directories if the word begins like one. It leaves out
// names with control characters or line breaks: a shell inserts a completion as if typed.
func (a *app) completeModels(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if typed != "" && strings.ContainsRune("./~", rune(typed[0])) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	var list []string
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	for _, m := range a.models(ctx) {
		if id, ok := modelID(m.Path); ok {
			list = append(list, id)
			continue
		}
		list = append(list, m.Path)
	}
	slices.Sort(list)
	var fit []cobra.Completion
	for _, name := range slices.Compact(list) { // a model may have several revisions
		if strings.HasPrefix(name, typed) && visible.Printable(name) {
			fit = append(fit, name)
		}
	}
	if len(fit) == 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return fit, cobra.ShellCompDirectiveNoFileComp
}

// completionTime is how long completion waits for the list of models.
const completionTime = 2 * time.Second

// completeInstances completes the possible names of instances on this machine.
func (a *app) completeInstances(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var list []cobra.Completion
	for _, g := range generator.Read(a.sysroot, os.Getuid(), a.env).GPUs {
		list = append(list, cobra.CompletionWithDesc(strconv.Itoa(g.Index), g.UUID))
		if g.UUID != "" {
			list = append(list, g.UUID)
		}
	}
	return append(list, cobra.CompletionWithDesc(place.Host, "the machine's own memory")), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
