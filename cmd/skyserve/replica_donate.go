package main

import (
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/rollout"
	"skyserve/provision/local"
)

func newReplicaDonateCmd(o *replicaOptions) *cobra.Command {
	return o.verb(&cobra.Command{
		Use:   "donate ID",
		Short: "Lend a replica that is not needed to the spot pool",
		Long: `Let a replica finish what it has and lend it: it stays up, and the service sends
it nothing. It is the first to come back when replicas are needed; without that
it is removed after autoscale.donate_for, but for a machine of a static region,
which stays.`,
		Example: "  skyserve replica donate us-1",
	}, func(r *rollout.Running, id string) (local.Wanted, error) {
		return r.Donate(r.Wanted, id, time.Now())
	})
}

func newReplicaReclaimCmd(o *replicaOptions) *cobra.Command {
	return o.verb(&cobra.Command{
		Use:     "reclaim ID",
		Short:   "Take a donated replica back and wait until it serves",
		Example: "  skyserve replica reclaim us-1",
	}, func(r *rollout.Running, id string) (local.Wanted, error) {
		if err := mustExist(r, id); err != nil {
			return r.Wanted, err
		}
		return r.Wanted.Reclaimed(id), nil
	})
}
