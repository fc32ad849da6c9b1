package health

import (
	"fmt"
	"slices"

	"skyserve/internal/service"
)

// The next steps of alerts. Commands that need a deployed service do not work for a standalone balancer.

// ifDeployed returns the first text for a balancer of a deployed service, the second for a standalone one.
func (o *Observation) ifDeployed(deployed, standalone string) string {
	if o.Standalone {
		return standalone
	}
	return deployed
}

// query returns a command that shows what balancers know. A standalone balancer has no service that the command could find: it
// requires the balancer's admin address.
func (o *Observation) query(command string) string {
	return "'skyserve " + command + o.ifDeployed("", " --admin URL") + "'"
}

// replacement returns what happens to a replica that is gone, to follow another step.
func (o *Observation) replacement() string {
	if o.hasOwnEngines() {
		return "; it receives requests again as soon as it responds"
	}
	return o.ifDeployed("; the controller replaces a VM or local process that is gone", "")
}

// hasOwnEngines reports whether the operator runs the engines of the region, in a service that `up` deployed.
func (o *Observation) hasOwnEngines() bool {
	return !o.Standalone && o.Own.Name.Cloud() == service.CloudStatic
}

// readLog returns how to read the log of a replica.
func (o *Observation) readLog(id string) string {
	if o.hasOwnEngines() {
		return "read the log of its engine, which you started"
	}
	return o.ifDeployed(fmt.Sprintf("read 'skyserve logs %s %s'", o.Service, id), "read the log of its engine")
}

// repairCheck returns how to repair a replica that fails its health checks. The log of an engine does not help if the
// configuration is wrong.
func (o *Observation) repairCheck(id string) string {
	switch o.Misconfigured[id] {
	case service.MisconfiguredModel:
		return o.ifDeployed("set models[].name in service.yaml to a name that the engine serves, then run 'skyserve up'", "set the replica's model to a name that the engine serves")
	case service.MisconfiguredKey:
		return o.ifDeployed("set models[].engine.api_key in service.yaml, or api_key of the replica's endpoint, to env:NAME or file:PATH, then run 'skyserve up'",
			"set the key of the engine with --replica-key, or api_key in the file of --config")
	}
	return o.readLog(id) + o.replacement()
}

// stopSending returns how to stop sending requests to a replica. `skyserve replica drain` is rejected for a service with
// rented machines.
func (o *Observation) stopSending(id string) string {
	step := fmt.Sprintf("POST /workers/%s/drain at the admin address", id)
	if !o.Standalone && !o.anyRented() {
		step = fmt.Sprintf("'skyserve replica drain %s'", id)
	}
	return step + " stops sending it requests"
}

// anyRented reports whether a region of the service has rented machines.
func (o *Observation) anyRented() bool {
	return o.Own.Name.Rented() || slices.ContainsFunc(o.Peers, func(p Peer) bool { return p.Region.Rented() })
}

// addReplica returns how to add a replica of a model. `skyserve replica add` requires --model if there are several.
func (o *Observation) addReplica(model string) string {
	command := "skyserve replica add " + o.Own.Name.ShortName()
	if len(o.Own.Models) > 1 {
		command += " --model " + model
	}
	deployed := "add a replica with '" + command + "'"
	if o.Own.Name.Cloud() == service.CloudStatic {
		deployed = "add a machine to service.yaml and run 'skyserve up'"
	}
	return o.ifDeployed(deployed, "add a replica with 'skyserve lb --replica', or POST /workers at the admin address")
}

// serveQueue returns how the queue of a model becomes shorter. More replicas do not help while those that exist are not
// ready. A replica whose model is unknown may be one of the model.
func (o *Observation) serveQueue(model string) string {
	exist, ready := false, false
	for _, r := range o.Own.Replicas {
		exist = exist || r.Model == model || r.Model == ""
		ready = ready || r.Model == model && r.State == service.StateReady
	}
	if exist && !ready {
		return fmt.Sprintf("no replica of %s is ready here: %s shows why", model, o.ifDeployed("'skyserve replica list'", o.query("top")))
	}
	return o.addReplica(model) + o.ifDeployed("; 'skyserve plan' shows how many are missing", "")
}
