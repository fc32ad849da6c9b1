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

// clusterFileName is the name of the file that records a store's cluster. It lies beside the store's directory.
// When the controller's configuration no longer has store_cluster, its store joins the recorded cluster once more, to take
// over all data.
const clusterFileName = "store-cluster.yaml"

// detachRetry is the interval between two attempts to take over the data of a former cluster, whose members may be
// starting. An attempt has no timeout here: Detach fails by itself when it cannot move any more streams.
const detachRetry = time.Second

// clusterFilePath returns the path of the file that records the store's cluster.
func clusterFilePath(config service.ControllerConfig) string {
	return filepath.Join(filepath.Dir(filepath.Clean(config.StoreDir)), clusterFileName)
}

// applyMembers changes the members of the store's cluster, and the servers of its client, to those of a
// configuration. member is this controller's own member; nil = it has none.
func applyMembers(config service.ControllerConfig, member *store.Server, client *store.Store) error {
	c := config.StoreCluster
	if c == nil || member == nil {
		return nil
	}
	if err := member.SetMembers(c.Routes, c.Members); err != nil {
		return err
	}
	if err := writeCluster(clusterFilePath(config), *c); err != nil {
		return fmt.Errorf("recording the members of the store's cluster: %w", err)
	}
	return client.SetURL(storeURL(member, *c))
}

// storeURL returns the URLs of the members for a controller: its own first.
func storeURL(member *store.Server, c service.StoreCluster) string {
	return strings.Join(append([]string{member.URL()}, c.Clients...), ",")
}

// serveStore serves the embedded store with options. The store continues after ctx ends, so that the controller
// can still release its lease; the caller closes it.
//
// A store whose configuration no longer has a cluster first takes over all data. That requires a majority of the
// former members; without one, serveStore waits until ctx ends.
func serveStore(ctx context.Context, config service.ControllerConfig, self *identity.Party, o store.Options) (*store.Server, error) {
	path := clusterFilePath(config)
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
			return nil, fmt.Errorf("starting store: reading its former cluster %s: %w; restore the file, or set store_cluster again to start it as a member", path, err)
		}
		if err := detachStore(ctx, o, clusterOptions(config, self, former)); err != nil {
			return nil, err
		}
	}
	return store.Serve(serving, o)
}

// detachStore moves all data of a cluster to this member, so that the member can become a single store.
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

// clusterOptions returns the options of a member. Members authenticate each other with the certificates of
// their controllers.
func clusterOptions(config service.ControllerConfig, self *identity.Party, c service.StoreCluster) *store.Cluster {
	cluster := &store.Cluster{
		Name: store.ClusterName(config.Service), Node: config.ID, Listen: c.Listen, Advertise: c.Advertise, Routes: c.Routes, Members: c.Members,
	}
	if self != nil {
		cluster.Accept, cluster.Dial = self.Server(identity.Controller), self.Client(identity.Controller)
	}
	return cluster
}

// clusterState returns the state of a cluster for balancers and operators.
func clusterState(c store.ClusterStatus, now time.Time) telemetry.StoreState {
	c = c.WithoutLag(now)
	s := telemetry.StoreState{Replicated: c.Replicated(), Leader: c.Leader, Members: []telemetry.StoreMember{}, Problem: c.NotReplicatedReason()}
	for _, m := range c.Members {
		if c.IsReplaced(m) {
			continue
		}
		s.Members = append(s.Members, telemetry.StoreMember{Node: m.Node, State: string(m.State), Problem: m.Problem})
	}
	s.Nodes = len(s.Members)
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
