package testcloud

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strings"
	"time"
)

// The states of an instance, as EC2 numbers them.
var ec2States = map[string]int{"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopped": 80}

// ec2State is a state on the wire.
type ec2State struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

func stateOf(name string) ec2State { return ec2State{ec2States[name], name} }

// ec2Instance is one VM.
type ec2Instance struct {
	id, token, image, kind, zone, subnet, group, groupName, profile string
	market                                                          string // on_demand, spot or capacity-block
	reservation                                                     string // the capacity reservation that it uses
	state, reason                                                   string
	reasonCode                                                      string
	launched                                                        time.Time
	number                                                          int // determines its addresses
	tags                                                            awsTags
	closingReads                                                    int // reads until it has terminated
	request                                                         awsForm
	console                                                         string
	userData                                                        string
	public, private                                                 string
	stop                                                            func() // returned by Boot; ends the machine's programs
	// unseen is the number of lists that still report oldState, or omit the instance if oldState is empty.
	unseen   int
	oldState string
}

// ec2InstanceDoc is an instance on the wire.
type ec2InstanceDoc struct {
	ID          string   `xml:"instanceId"`
	Image       string   `xml:"imageId"`
	State       ec2State `xml:"instanceState"`
	Reason      string   `xml:"reason"`
	StateReason *struct {
		Code    string `xml:"code"`
		Message string `xml:"message"`
	} `xml:"stateReason"`
	Type      string `xml:"instanceType"`
	Launched  string `xml:"launchTime"`
	Placement struct {
		Zone string `xml:"availabilityZone"`
	} `xml:"placement"`
	PrivateIP string `xml:"privateIpAddress,omitempty"`
	PublicIP  string `xml:"ipAddress,omitempty"`
	Token     string `xml:"clientToken"`
	Lifecycle string `xml:"instanceLifecycle,omitempty"`
	Subnet    string `xml:"subnetId"`
	CPU       struct {
		Cores   int `xml:"coreCount"`
		Threads int `xml:"threadsPerCore"`
	} `xml:"cpuOptions"`
	Reservation string        `xml:"capacityReservationId,omitempty"`
	Tags        []awsTag      `xml:"tagSet>item"`
	Groups      []ec2GroupRef `xml:"groupSet>item"`
}

// ec2GroupRef is a security group that an instance is in.
type ec2GroupRef struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

// doc returns the instance on the wire, in a state.
func (i *ec2Instance) doc(state string) ec2InstanceDoc {
	d := ec2InstanceDoc{
		ID: i.id, Image: i.image, State: stateOf(state), Type: i.kind, Token: i.token, Subnet: i.subnet, Reservation: i.reservation,
		Launched: i.launched.UTC().Format("2006-01-02T15:04:05.000Z"), Tags: i.tags.xmlTags(),
	}
	if i.group != "" {
		d.Groups = []ec2GroupRef{{i.group, i.groupName}}
	}
	d.Placement.Zone = i.zone
	d.CPU.Cores, d.CPU.Threads = ec2Types[i.kind]/2, 2
	if i.market == "spot" || i.market == ec2BlockMarket {
		d.Lifecycle = i.market
	}
	if state == "running" {
		d.PrivateIP, d.PublicIP = i.private, i.public
	}
	if i.reasonCode != "" && state == i.state {
		d.Reason = i.reason
		d.StateReason = &struct {
			Code    string `xml:"code"`
			Message string `xml:"message"`
		}{i.reasonCode, i.reasonCode + ": " + i.reason}
	}
	return d
}

// visibleState returns the state that lists report; "" = they omit the instance.
func (i *ec2Instance) visibleState() string {
	if i.unseen > 0 {
		return i.oldState
	}
	return i.state
}

// observe advances an instance after a list has returned it.
func (i *ec2Instance) observe() {
	if i.unseen > 0 {
		i.unseen--
		return
	}
	i.advance()
}

// advance moves an instance one read closer to its target state.
func (i *ec2Instance) advance() {
	switch {
	case i.state == "pending":
		i.state = "running"
	case i.state == "shutting-down" && i.closingReads == 0:
		i.state = "terminated"
	case i.state == "shutting-down":
		i.closingReads--
	}
}

// hasInterface reports whether the instance still has its network interface.
func (i *ec2Instance) hasInterface() bool { return i.state != "terminated" }

// usesCapacity reports whether the instance counts against quotas and reservations.
func (i *ec2Instance) usesCapacity() bool { return i.state == "pending" || i.state == "running" }

// terminate starts to shut an instance down.
func (r *ec2Region) terminate(i *ec2Instance, code, reason string) {
	if !i.usesCapacity() && i.state != "stopped" {
		return
	}
	if i.stop != nil {
		i.stop()
		i.stop = nil
	}
	i.oldState, i.unseen = i.state, r.aws.faults.StaleLists
	i.state, i.reasonCode, i.reason, i.closingReads = "shutting-down", code, reason, r.aws.ShutdownReads
}

type instanceSet struct {
	Instances []ec2InstanceDoc `xml:"instancesSet>item"`
}

type instancesAnswer struct {
	Reservations []instanceSet `xml:"reservationSet>item"`
	Next         string        `xml:"nextToken,omitempty"`
}

func (r *ec2Region) describeInstances(f awsForm) (any, error) {
	all, err := filtered(f, r.instances, func(i *ec2Instance) attributes {
		return i.tags.addTo(attributes{
			"client-token": i.token, "instance-type": i.kind, "instance-state-name": cmp.Or(i.visibleState(), i.state), "availability-zone": i.zone,
		})
	})
	if err != nil {
		return nil, err
	}
	requested := f.list("InstanceId")
	var docs []ec2InstanceDoc
	for _, i := range all {
		if len(requested) > 0 && !slices.Contains(requested, i.id) {
			continue
		}
		if state := i.visibleState(); state != "" {
			docs = append(docs, i.doc(state))
		}
		i.observe()
	}
	if len(docs) < len(requested) {
		return nil, badRequest("InvalidInstanceID.NotFound", "The instance IDs '%s' do not exist", strings.Join(requested, ", "))
	}
	part, next := paginate(r.aws, docs, f.get("NextToken"), f.get("MaxResults"))
	answer := instancesAnswer{Next: next}
	for _, d := range part {
		answer.Reservations = append(answer.Reservations, instanceSet{[]ec2InstanceDoc{d}})
	}
	return answer, nil
}

type ec2StateChange struct {
	ID       string   `xml:"instanceId"`
	Current  ec2State `xml:"currentState"`
	Previous ec2State `xml:"previousState"`
}

type stateChangesAnswer struct {
	Changes []ec2StateChange `xml:"instancesSet>item"`
}

func (r *ec2Region) terminateInstances(f awsForm) (any, error) {
	var answer stateChangesAnswer
	for _, id := range f.list("InstanceId") {
		i := r.instances[id]
		if i == nil {
			return nil, badRequest("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", id)
		}
		previous := i.state
		r.terminate(i, "Client.UserInitiatedShutdown", "User initiated shutdown")
		answer.Changes = append(answer.Changes, ec2StateChange{id, stateOf(i.state), stateOf(previous)})
	}
	return answer, nil
}

type consoleAnswer struct {
	ID   string `xml:"instanceId"`
	Text string `xml:"output"` // in base64
}

func (r *ec2Region) getConsole(f awsForm) (any, error) {
	i := r.instances[f.get("InstanceId")]
	if i == nil {
		return nil, badRequest("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", f.get("InstanceId"))
	}
	return consoleAnswer{i.id, base64.StdEncoding.EncodeToString([]byte(i.console))}, nil
}

// WriteConsole writes to the console of an instance, by its id.
func (a *AWS) WriteConsole(id, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.regions {
		if i := r.instances[id]; i != nil {
			i.console += text
		}
	}
}

func (r *ec2Region) createTags(f awsForm) (any, error) {
	for _, id := range f.list("ResourceId") {
		var tags awsTags
		switch i, g := r.instances[id], r.groups[id]; {
		case i != nil:
			tags = i.tags
		case g != nil:
			if _, err := r.findVisibleGroup(id); err != nil {
				return nil, err
			}
			tags = g.tags
		default:
			return nil, badRequest("InvalidID", "The ID '%s' is not valid", id)
		}
		for key, value := range f.readTags("Tag") {
			tags[key] = value
		}
	}
	return success(), nil
}

// successAnswer is the response of an action without a result.
type successAnswer struct {
	Return bool `xml:"return"`
}

func success() successAnswer { return successAnswer{true} }

// InterruptInstance interrupts a spot instance, by its id.
func (a *AWS) InterruptInstance(id string) {
	a.terminateByID(id, "Server.SpotInstanceTermination", "Spot interruption")
}

// TerminateInstance terminates an instance, like a user in the console.
func (a *AWS) TerminateInstance(id string) {
	a.terminateByID(id, "Client.UserInitiatedShutdown", "User initiated shutdown")
}

func (a *AWS) terminateByID(id, code, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.regions {
		if i := r.instances[id]; i != nil {
			r.terminate(i, code, reason)
		}
	}
}

// StopInstance stops an instance, like a user in the console.
func (a *AWS) StopInstance(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.regions {
		if i := r.instances[id]; i != nil {
			i.state, i.reasonCode, i.reason = "stopped", "Client.UserInitiatedShutdown", "User initiated shutdown"
		}
	}
}

// RemoveEndedInstances removes every ended instance from lists, as EC2 does within an hour. Their client tokens
// remain in use.
func (a *AWS) RemoveEndedInstances() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.regions {
		for id, i := range r.instances {
			if i.state == "terminated" || i.state == "shutting-down" {
				delete(r.instances, id)
			}
		}
	}
}
