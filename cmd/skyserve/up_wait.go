package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// waitMode is the value of --wait: the part of a service that `up` waits for.
type waitMode string

// The modes.
const (
	waitReplicas  waitMode = "replicas"  // until every machine is ready
	waitBalancers waitMode = "balancers" // until every balancer is ready; the controller starts the replicas
	waitNone      waitMode = "none"      // until every balancer has its configuration, which only `up` delivers
)

// waitModes are the values of --wait.
var waitModes = []string{string(waitReplicas), string(waitBalancers), string(waitNone)}

// String implements pflag.Value.
func (m *waitMode) String() string { return string(*m) }

// Type implements pflag.Value. The help of a bool does not show the value of the flag alone, which would look like
// a part of the syntax: --wait PART[=replicas].
func (m *waitMode) Type() string { return "bool" }

// Set implements pflag.Value. It also accepts the values of the former boolean flag.
func (m *waitMode) Set(text string) error {
	switch text {
	case "true":
		text = string(waitReplicas)
	case "false":
		text = string(waitNone)
	}
	if !slices.Contains(waitModes, text) {
		return fmt.Errorf("must be one of %s", strings.Join(waitModes, ", "))
	}
	*m = waitMode(text)
	return nil
}

// registerWaitFlag adds --wait. The flag alone means "replicas", as before it had values.
func registerWaitFlag(cmd *cobra.Command, m *waitMode) {
	*m = waitReplicas
	flag := cmd.Flags().VarPF(m, "wait", "", "wait until this `PART` of the service is ready: replicas, balancers or none (the controller starts the replicas)")
	flag.NoOptDefVal = "true"
	_ = cmd.RegisterFlagCompletionFunc("wait", cobra.FixedCompletions(waitModes, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}

// checkUpArgs checks the arguments of `up` without the value of --wait. A second argument after --wait is an unknown
// value of it.
func checkUpArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 2 && cmd.Flags().Changed("wait") {
		value := args[1]
		if strings.HasSuffix(value, ".yaml") || strings.HasSuffix(value, ".yml") {
			value = args[0]
		}
		return usage(fmt.Errorf("--wait: must be one of %s, got %q", strings.Join(waitModes, ", "), value), "")
	}
	return argsBetween(1, 1, "SERVICE.yaml")(cmd, args)
}

// takeWaitValue removes a value of --wait from the arguments: the parser takes the next word of a
// flag that also stands alone for an argument.
func takeWaitValue(cmd *cobra.Command, args []string, m *waitMode) []string {
	i := slices.IndexFunc(args, func(a string) bool { return slices.Contains(waitModes, a) })
	if i < 0 || len(args) != 2 || !cmd.Flags().Changed("wait") {
		return args
	}
	*m = waitMode(args[i])
	return slices.Delete(slices.Clone(args), i, i+1)
}

// awaited returns the machines that the delivery waits for; nil = all. Machines on this computer
// start within a second, and are all awaited.
func (u *upRun) awaited() func(provision.Object) bool {
	if cmp.Or(u.wait, waitReplicas) == waitReplicas || !cloud.UsesClouds(u.spec) {
		return nil
	}
	return func(o provision.Object) bool { return o.Kind != provision.KindReplica }
}

// delivered records the machines that have received their configuration, and the publication of the
// name. It is safe for concurrent use.
type delivered struct {
	mu        sync.Mutex
	machines  map[string]bool
	published bool
}

// record records the status of a machine: in any phase but "waiting" it has its configuration.
func (d *delivered) record(id string, s agent.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.machines == nil {
		d.machines = map[string]bool{}
	}
	if s.Phase != agent.PhaseWaiting {
		d.machines[id] = true
	}
}

// setPublished records that the name is published.
func (d *delivered) setPublished() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.published = true
}

// remainder returns what a run that ends early leaves to the controller, and what only another `up` does;
// empty if the controller has not received its configuration, or nothing runs in clouds.
func (d *delivered) remainder(spec *service.Spec, file string, wants []provision.Desired) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !cloud.UsesClouds(spec) || !slices.ContainsFunc(deploy.ControlMachines(spec, nil, nil), func(id string) bool { return d.machines[id] }) {
		return ""
	}
	text := fmt.Sprintf("the controller starts the replicas that are not ready yet; follow with 'skyserve status %s -w'", spec.Name)
	var left []string
	for _, w := range wants {
		if w.Kind == provision.KindBalancer && !d.machines[w.ID] {
			left = append(left, "enrols "+w.ID)
		}
	}
	slices.Sort(left)
	if spec.DNS != nil && !d.published {
		left = append(left, "publishes "+spec.DNS.Name)
	}
	if len(left) > 0 {
		text += fmt.Sprintf("; only 'skyserve up %s' %s", file, strings.Join(left, ", "))
	}
	return text
}

// printRemainder prints what is left to the controller after a run that did not wait for replicas.
func (u *upRun) printRemainder() {
	if u.wait == waitReplicas {
		return
	}
	if text := u.delivered.remainder(u.spec, u.file, u.changes.Desired); text != "" {
		u.printLine("%s", text)
	}
}

// servingDelivery returns the delivery that waits until local balancers serve.
func (u *upRun) servingDelivery(have []provision.Object) *deploy.Delivery {
	return &deploy.Delivery{Service: u.spec.Name, Party: u.operator.party, Machines: have, BalancersOnly: u.wait == waitBalancers, OnlyReplicas: u.onlyReplicas}
}
