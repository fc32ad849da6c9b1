package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/registry"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// noteImages is the note that records the engines' images with their digests: deploy.Images.
const noteImages = "images.json"

// resolveModes are the values of --resolve-image.
var resolveModes = []string{string(deploy.ResolveChanged), string(deploy.ResolveAlways), string(deploy.ResolveNever)}

// registerResolveFlag adds --resolve-image.
func registerResolveFlag(cmd *cobra.Command, which *deploy.ResolveImage) {
	cmd.Flags().StringVar((*string)(which), "resolve-image", string(deploy.ResolveChanged), "read the digests of images from their registries: changed (images without a recorded digest), always or never")
	_ = cmd.RegisterFlagCompletionFunc("resolve-image", cobra.FixedCompletions(resolveModes, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}

// checkResolve rejects an unknown value of --resolve-image.
func checkResolve(which deploy.ResolveImage) error {
	if !slices.Contains(resolveModes, string(which)) {
		return usage(fmt.Errorf("--resolve-image: must be one of %s, got %q", strings.Join(resolveModes, ", "), which), "")
	}
	return nil
}

// resolveImages determines the images with their digests, and prints a warning for each unknown one. Changes of
// replicas alone use the recorded digests.
func (u *upRun) resolveImages(ctx context.Context) error {
	if !cloud.UsesClouds(u.spec) {
		return nil
	}
	var recorded deploy.Images
	if err := u.svc.LoadValue(noteImages, &recorded); err != nil {
		return err
	}
	which := u.resolve
	if u.filter != nil {
		which = deploy.ResolveNever
	}
	images, problems, err := deploy.ResolveImages(ctx, u.spec, recorded, which, registry.Digest)
	if err != nil {
		return err
	}
	u.images = images
	for _, p := range problems {
		fmt.Fprintf(u.errOut, "%s: warning: %s\n", u.file, p)
	}
	return nil
}

// storeDesiredState stores the part of the desired state that is not in service.yaml.
func (u *upRun) storeDesiredState() error {
	dir, err := u.baseDir()
	if err != nil {
		return err
	}
	if !cloud.UsesClouds(u.spec) {
		return cmp.Or(u.svc.StoreValue(noteBase, dir), u.svc.StoreAdminToken(), u.svc.StoreValue(noteZone, u.hostedZone))
	}
	for name, value := range map[string]any{noteBase: dir, noteProgram: u.program, noteImages: u.images, noteZone: u.hostedZone, noteFederation: u.federation} {
		if err := u.svc.StoreValue(name, value); err != nil {
			return err
		}
	}
	return nil
}

// shownImages returns the images that machines in clouds pull; none for a service without them.
func (u *upRun) shownImages() []deploy.ImageStatus {
	if !cloud.UsesClouds(u.spec) {
		return nil
	}
	return deploy.ImagesOf(u.spec, u.images)
}

// printImages prints the images that machines pull, one per line.
func printImages(w io.Writer, images []deploy.ImageStatus) {
	for _, i := range images {
		pinned := "by tag, may change"
		if i.Pinned {
			pinned = "pinned by digest"
		}
		fmt.Fprintf(w, "image of %s: %s (%s)\n", i.Model, i.Image, pinned)
	}
}

// findImages checks that the registries have the images of the service.
func (o *doctorOptions) findImages(ctx context.Context, spec *service.Spec, _ provision.MultiCloud) ([]provision.CheckResult, error) {
	images, problems, err := deploy.ResolveImages(ctx, spec, nil, deploy.ResolveAlways, registry.Digest)
	var missing *provision.SpecError
	if errors.As(err, &missing) {
		return []provision.CheckResult{{Where: "images", Message: err.Error()}}, nil
	}
	var findings []provision.CheckResult
	for _, pinned := range slices.Sorted(maps.Values(images)) {
		findings = append(findings, provision.CheckResult{Where: "images", OK: true, Message: pinned + " exists"})
	}
	for _, p := range problems {
		findings = append(findings, provision.CheckResult{Where: "images", OK: true, Warning: true, Message: p.String()})
	}
	return findings, err
}

// printUnpinned prints a warning for each image of a running service that machines in clouds pull by tag.
func printUnpinned(w io.Writer, spec *service.Spec) {
	home, err := local.OpenHome()
	if err != nil || !cloud.UsesClouds(spec) {
		return
	}
	svc, err := home.Service(spec.Name)
	var recorded deploy.Images
	if err != nil || svc.LoadValue(noteImages, &recorded) != nil {
		return // other commands report it
	}
	for _, i := range deploy.ImagesOf(spec, recorded) {
		if !i.Pinned {
			fmt.Fprintf(w, "%s: warning: the image of %s, %s, has no recorded digest, and its publisher can move the tag; 'skyserve up' records it\n", spec.Name, i.Model, i.Image)
		}
	}
}
