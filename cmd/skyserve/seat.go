package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"

	"skyserve/internal/controller"
	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/provision/cloud"
)

// means is how the controller of a service in clouds reaches them: what its machine is
// handed in the words of this program.
type means struct {
	// Program is what machines that it launches get.
	Program machineProgram `json:"program"`
	// The clouds, where they are not at their usual places.
	EndpointAWS string `json:"endpoint_aws,omitempty"`
	EndpointGCP string `json:"endpoint_gcp,omitempty"`
	Project     string `json:"project,omitempty"`
}

// keeping are the options of a controller on a machine in a cloud, whose configuration
// is this file; none of any other.
func keeping(file string, log *slog.Logger) []controller.Option {
	dir := filepath.Dir(file)
	if !fleet.IsSeat(dir) {
		return nil
	}
	k := &fleet.Keeper{Dir: dir, Open: reachClouds, Logger: log}
	return []controller.Option{controller.KeptBy(k), controller.ActedOn(k)}
}

// reachClouds reaches the regions of a service as one of its machines does: it sees
// machines alone.
func reachClouds(ctx context.Context, text json.RawMessage, spec *service.Spec, owner string) (fleet.Reach, error) {
	var m means
	if err := json.Unmarshal(text, &m); err != nil {
		return fleet.Reach{}, fmt.Errorf("reading how clouds are reached: %w", err)
	}
	clouds := cloudFlags{endpointAWS: m.EndpointAWS, endpointGCP: m.EndpointGCP, project: m.Project, machinesOnly: true}
	places, err := clouds.places(ctx, cloud.Regions(spec), false) // which matters to firewalls alone
	if err != nil {
		return fleet.Reach{}, err
	}
	return fleet.Reach{Provider: places, Witness: places, UserData: userData(spec.Name, owner, m.Program)}, nil
}
