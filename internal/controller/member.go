package controller

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/internal/atomicfile"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// fileCluster contains, beside the directory of a store, the cluster that it was last a member of: the
// store joins it once more to take all data over before it becomes a single one.
const fileCluster = "store-cluster.yaml"

// detachRetry is the interval between two attempts to take over the data of a former cluster: the members may be
// starting. An attempt has no limit here: Detach fails when it moves no further stream, and a new attempt starts over.
const detachRetry = time.Second

// clusterFile returns the path of fileCluster.
func clusterFile(config service.ControllerConfig) string {
	return filepath.Join(filepath.Dir(filepath.Clean(config.StoreDir)), fileCluster)
}

// followMembers applies the members of a configuration to the store's cluster and its client. member is this
// controller's own; nil = it has none.
func followMembers(config service.ControllerConfig, member *store.Server, client *store.Store) error {
	c := config.StoreCluster
	if c == nil || member == nil {
		return nil
	}
	if err := member.SetMembers(c.Routes, c.Members); err != nil {
		return err
	}
	if err := writeCluster(clusterFile(config), *c); err != nil {
		return fmt.Errorf("recording the members of the store's cluster: %w", err)
	}
	return client.SetURL(storeURL(member, *c))
}

// storeURL returns the URLs of the members for a controller: its own first.
func storeURL(member *store.Server, c service.StoreCluster) string {
	return strings.Join(append([]string{member.URL()}, c.Clients...), ",")
}

// serveStore serves the embedded store with options. It outlives ctx until the lease is released.
//
// A store that is no longer a member of a cluster takes all data over first. That requires a majority of the
// former members; without one it waits, until ctx ends.
func serveStore(ctx context.Context, config service.ControllerConfig, self *identity.Party, o store.Options) (*store.Server, error) {
	path := clusterFile(config)
	serving := context.WithoutCancel(ctx)
	if c := config.StoreCluster; c != nil {
		if err := writeCluster(path, *c); err != nil {
			return nil, fmt.Errorf("starting store: %w", err)
		}
		o.Cluster = clusterOptions(config, self, *c)
		return store.Serve(serving, o)
	}
	member, err := store.IsMember(config.StoreDir)
	if err != nil {
		return nil, err
	}
	if member {
		former, err := readCluster(path)
		if err != nil {
			return nil, fmt.Errorf("starting store: reading its former cluster %s: %w", path, err)
		}
		if err := detachStore(ctx, o, clusterOptions(config, self, former)); err != nil {
			return nil, err
		}
	}
	return store.Serve(serving, o)
}

// detachStore makes a member of a cluster a single store with all data.
func detachStore(ctx context.Context, o store.Options, c *store.Cluster) error {
	o.Cluster = c
	member, err := store.Serve(context.WithoutCancel(ctx), o)
	if err != nil {
		return err
	}
	defer member.Close()
	for {
		err := member.Detach(ctx)
		if err == nil {
			return nil
		}
		o.Logger.Warn("taking over the data of the store's former cluster failed; retrying", "err", err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(detachRetry):
		}
	}
}

// clusterOptions returns the options of a member. Members authenticate each other by their certificates of
// controllers.
func clusterOptions(config service.ControllerConfig, self *identity.Party, c service.StoreCluster) *store.Cluster {
	all := &store.Cluster{
		Name: store.ClusterName(config.Service), Node: config.ID, Listen: c.Listen, Advertise: c.Advertise, Routes: c.Routes, Members: c.Members,
	}
	if self != nil {
		all.Accept, all.Dial = self.Server(identity.Controller), self.Client(identity.Controller)
	}
	return all
}

// clusterState returns the state of a cluster for balancers and operators.
func clusterState(c store.ClusterStatus, now time.Time) telemetry.StoreState {
	c = c.WithoutLag(now)
	s := telemetry.StoreState{Nodes: len(c.Members), Replicated: c.Replicated(), Leader: c.Leader, Members: []telemetry.StoreMember{}, Problem: c.NotReplicatedReason()}
	for _, m := range c.Members {
		s.Members = append(s.Members, telemetry.StoreMember{Node: m.Node, State: string(m.State)})
	}
	return s
}

// writeCluster records the cluster of a store.
func writeCluster(path string, c service.StoreCluster) error {
	text, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.WriteFile(path, text, 0o600)
}

// readCluster returns the recorded cluster.
func readCluster(path string) (c service.StoreCluster, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalWithOptions(text, &c, yaml.Strict())
	}
	return c, err
}
