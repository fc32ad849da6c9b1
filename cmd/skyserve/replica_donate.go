package main

import "github.com/spf13/cobra"

func newReplicaDonateCmd(o *replicaOptions) *cobra.Command {
	return o.verb(&cobra.Command{
		Use:   "donate ID",
		Short: "Lend a replica that is not needed to the spot pool",
		Long: `Let a replica finish what it has and lend it: it stays up, and the service sends
it nothing. It is the first to come back when replicas are needed; without that
it is removed after autoscale.donate_for, but for a machine of a static region,
which stays.`,
		Example: "  skyserve replica donate us-1",
	}, donated)
}

func newReplicaReclaimCmd(o *replicaOptions) *cobra.Command {
	return o.verb(&cobra.Command{
		Use:     "reclaim ID",
		Short:   "Take a donated replica back and wait until it serves",
		Example: "  skyserve replica reclaim us-1",
	}, reclaimed)
}
