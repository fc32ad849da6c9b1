package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// cloudSpec is the service.yaml of a service with regions in clouds: the file that an
// argument names, else the one that the service was brought up from; nil for any
// other service. It is an error where the file cannot be read and the service has
// machines in clouds, which nobody would find again without it.
func cloudSpec(arg string, svc local.Service) (*service.Spec, error) {
	file := svc.SpecFile()
	if ext := filepath.Ext(arg); ext == ".yaml" || ext == ".yml" {
		file = arg
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the service: %w", err)
	}
	spec, err := service.ParseDeployed(file, text)
	if err == nil && len(cloud.Clouds(spec)) > 0 {
		return spec, nil
	}
	var program machineProgram // which only machines in clouds get
	if noted := svc.Note(noteProgram, &program); err != nil && (noted != nil || program.URL != "") {
		return nil, usage(err, "machines of the service run in clouds, and its file says where: correct it")
	}
	return nil, nil // what is not in a cloud needs no more of its file than the name
}

// runCloudDown removes what a service has in clouds, and after that its state here.
func runCloudDown(ctx context.Context, o *downOptions, in io.Reader, out, talk io.Writer, svc local.Service, spec *service.Spec) error {
	who, err := operatorOf(svc, "taking it down", "'skyserve gc' finds and removes what nobody owns; 'skyserve connect' makes this machine an operator")
	if err != nil {
		return err
	}
	places, err := o.clouds.placesOf(ctx, spec)
	if err != nil {
		return cloudError(err)
	}
	have, err := places.List(ctx, spec.Name)
	if err != nil {
		return cloudError(err)
	}
	plan := &fleet.Plan{Have: have, Changes: provision.Diff(nil, have)}
	printCloudChanges(talk, spec.Name, plan)
	if err := agree(in, talk, plan, o.yes); err != nil {
		return err
	}
	if err := o.unpublish(ctx, svc, spec, who.owner); err != nil {
		return cloudError(err)
	}
	h := fleet.Handover{Service: spec.Name, Party: who.party, Have: have}
	if err := h.Dismiss(ctx, cloud.ControllerMachine(spec)); err != nil && ctx.Err() == nil {
		fmt.Fprintf(talk, "the controller was not told: %v; should it launch anything yet, 'skyserve gc' finds it\n", err)
	}
	stopped := 0
	err = fleet.Down(ctx, places, spec.Name, who.owner, func(c provision.Change, p provision.Phase, _ error) {
		if p == provision.PhaseDone {
			stopped++
			fmt.Fprintf(talk, "removed %s\n", c.ID())
		}
	})
	var left *provision.LeftoverError
	if err != nil && !errors.As(err, &left) {
		return cloudError(err)
	}
	if err == nil || o.purge {
		if removing := svc.Remove(); removing != nil {
			return removing
		}
	}
	if err := printDown(out, o.output, spec.Name, "removed", stopped, left); err != nil {
		return err
	}
	if left != nil {
		return &exitError{code: exitPartial, err: err, hint: "run it again, or remove what is left by hand"}
	}
	return nil
}

// unpublish removes the public name of a service: the one that is noted, and the one that
// its file says, which another operator may have published.
func (o *downOptions) unpublish(ctx context.Context, svc local.Service, spec *service.Spec, owner string) error {
	zone, err := o.clouds.zone(ctx, spec, svc)
	if err != nil || zone == nil {
		return err
	}
	if n := publicName(spec, owner, nil); n.Name != "" {
		if err := zone.Set(ctx, n); err != nil {
			return fmt.Errorf("removing the name %s: %w", n.Name, err)
		}
	}
	return fleet.Unpublish(ctx, zone, svc)
}

// machinesOf lists the machines of a service in clouds, sorted.
func machinesOf(have []provision.Object) []provision.Object {
	machines := slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool {
		return o.Kind != provision.KindBalancer && o.Kind != provision.KindReplica
	})
	slices.SortFunc(machines, byPlace)
	return machines
}
