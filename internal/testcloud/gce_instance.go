package testcloud

import (
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
)

// The states of an instance, and the provisioning model that may be interrupted.
const (
	gceProvisioning = "PROVISIONING"
	gceRunning      = "RUNNING"
	gceStopping     = "STOPPING"
	gceTerminated   = "TERMINATED" // stopped; it can be started again
	gceSpot         = "SPOT"
)

// GCEInstance is a virtual machine.
type GCEInstance struct {
	Kind                string              `json:"kind,omitempty"`
	ID                  string              `json:"id,omitempty"`
	SelfLink            string              `json:"selfLink,omitempty"`
	Status              string              `json:"status,omitempty"`
	Zone                string              `json:"zone,omitempty"`
	Created             string              `json:"creationTimestamp,omitempty"`
	Name                string              `json:"name"`
	Description         string              `json:"description,omitempty"`
	MachineType         string              `json:"machineType"`
	Labels              map[string]string   `json:"labels,omitempty"`
	Metadata            GCEMetadata         `json:"metadata,omitzero"`
	Tags                GCETags             `json:"tags,omitzero"`
	Scheduling          GCEScheduling       `json:"scheduling,omitzero"`
	Params              *GCEParams          `json:"params,omitempty"`
	ResourceStatus      *GCEResourceStatus  `json:"resourceStatus,omitempty"`
	ReservationAffinity *GCEReservation     `json:"reservationAffinity,omitempty"`
	Disks               []GCEDisk           `json:"disks,omitempty"`
	NetworkInterfaces   []GCEInterface      `json:"networkInterfaces,omitempty"`
	ServiceAccounts     []GCEServiceAccount `json:"serviceAccounts,omitempty"`
	GuestAccelerators   []GCEAccelerator    `json:"guestAccelerators,omitempty"`

	guest   map[string]string // guest attributes, by namespace/key
	number  int               // determines its addresses
	creator string            // the service account that created it; empty = the operator
	stop    func()            // returned by BootMachine; ends the machine's programs
}

// GCEMetadata is the metadata of an instance. Every caller who may read the instance may read it.
type GCEMetadata struct {
	Items []GCEMetadataItem `json:"items,omitempty"`
}

// GCEMetadataItem is one entry of an instance's metadata.
type GCEMetadataItem struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// GCETags are an instance's network tags.
type GCETags struct {
	Items []string `json:"items,omitempty"`
}

// GCEScheduling contains the provisioning and termination options of an instance.
type GCEScheduling struct {
	ProvisioningModel         string       `json:"provisioningModel,omitempty"`
	InstanceTerminationAction string       `json:"instanceTerminationAction,omitempty"`
	OnHostMaintenance         string       `json:"onHostMaintenance,omitempty"`
	AutomaticRestart          *bool        `json:"automaticRestart,omitempty"`
	MaxRunDuration            *GCEDuration `json:"maxRunDuration,omitempty"`
	OnInstanceStopAction      *GCEStop     `json:"onInstanceStopAction,omitempty"`
	Preemptible               bool         `json:"preemptible,omitempty"`
}

// GCEStop is what happens to local SSDs when Google stops an instance at the end of its run.
type GCEStop struct {
	DiscardLocalSSD bool `json:"discardLocalSsd,omitempty"`
}

// GCEDuration is a span of time.
type GCEDuration struct {
	Seconds string `json:"seconds"`
}

// count returns the seconds; 0 without a duration.
func (d *GCEDuration) count() int {
	if d == nil {
		return 0
	}
	n, _ := strconv.Atoi(d.Seconds)
	return n
}

// GCEParams are parameters of a request that are not stored with the instance.
type GCEParams struct {
	RequestValidForDuration *GCEDuration `json:"requestValidForDuration,omitempty"`
}

// GCEReservation selects the reservations that an instance may use.
type GCEReservation struct {
	Consume string   `json:"consumeReservationType"`
	Key     string   `json:"key,omitempty"`
	Values  []string `json:"values,omitempty"`
}

// GCEResourceStatus contains when an instance with a limited run ends.
type GCEResourceStatus struct {
	Scheduling GCEScheduledEnd `json:"scheduling"`
}

// GCEScheduledEnd is the end of an instance's run, in RFC 3339.
type GCEScheduledEnd struct {
	TerminationTimestamp string `json:"terminationTimestamp,omitempty"`
}

// GCEDisk is a disk of an instance.
type GCEDisk struct {
	Type             string        `json:"type,omitempty"`      // empty = PERSISTENT
	Interface        string        `json:"interface,omitempty"` // NVME or SCSI
	Boot             bool          `json:"boot,omitempty"`
	AutoDelete       bool          `json:"autoDelete,omitempty"`
	InitializeParams GCEDiskParams `json:"initializeParams,omitzero"`
}

// GCEDiskParams contains the parameters for creating a disk.
type GCEDiskParams struct {
	SourceImage string            `json:"sourceImage,omitempty"`
	DiskSizeGB  string            `json:"diskSizeGb,omitempty"`
	DiskType    string            `json:"diskType,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

// GCEInterface is an instance's network interface.
type GCEInterface struct {
	Network       string            `json:"network,omitempty"`
	Subnet        string            `json:"subnetwork,omitempty"`
	NicType       string            `json:"nicType,omitempty"`
	NetworkIP     string            `json:"networkIP,omitempty"`
	AccessConfigs []GCEAccessConfig `json:"accessConfigs,omitempty"`
}

// GCEAccessConfig is the public address of a network interface.
type GCEAccessConfig struct {
	Type  string `json:"type,omitempty"`
	Name  string `json:"name,omitempty"`
	NatIP string `json:"natIP,omitempty"`
}

// GCEServiceAccount is the identity of an instance's programs.
type GCEServiceAccount struct {
	Email  string   `json:"email"`
	Scopes []string `json:"scopes"`
}

// GCEAccelerator describes GPUs that are attached to a machine type without built-in GPUs.
type GCEAccelerator struct {
	Type  string `json:"acceleratorType"`
	Count int    `json:"acceleratorCount"`
}

// key returns the key of an instance: ZONE/NAME.
func (i GCEInstance) key() string { return path.Base(i.Zone) + "/" + i.Name }

// field returns a field of an instance for a filter.
func (i GCEInstance) field(name string) (string, bool) {
	if key, ok := strings.CutPrefix(name, "labels."); ok {
		value, found := i.Labels[key]
		return value, found
	}
	return i.Name, name == "name"
}

var (
	gceLabelKey   = service.LazyPattern(`^[a-z][a-z0-9_-]{0,62}$`)
	gceLabelValue = service.LazyPattern(`^[a-z0-9_-]{0,63}$`)
)

// checkInstance validates a requested instance.
func (g *GCE) checkInstance(zone string, i *GCEInstance) *gceError {
	invalid := func(field string, value any) *gceError {
		return newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field 'resource.%s': '%v'.", field, value)
	}
	switch {
	case !gceName().MatchString(i.Name):
		return invalid("name", i.Name)
	case i.MachineType != fmt.Sprintf("zones/%s/machineTypes/%s", zone, path.Base(i.MachineType)):
		return invalid("machineType", i.MachineType)
	case !g.hasMachineType(zone, path.Base(i.MachineType)):
		return newGCEError(http.StatusBadRequest, "invalid", "Invalid value for field 'resource.machineType': '%s'. The referenced resource does not exist.", i.MachineType)
	case len(i.Disks) == 0 || !i.Disks[0].Boot || i.Disks[0].InitializeParams.SourceImage == "":
		return invalid("disks", i.Disks)
	case len(i.NetworkInterfaces) != 1:
		return invalid("networkInterfaces", i.NetworkInterfaces)
	}
	if fail := checkScheduling(path.Base(i.MachineType), i.Scheduling, i.NetworkInterfaces[0].NicType, i.Disks[0].InitializeParams.DiskType); fail != nil {
		return fail
	}
	if fail := checkFlexStart(i); fail != nil {
		return fail
	}
	if fail := checkLocalSSDs(zone, i); fail != nil {
		return fail
	}
	for k, v := range i.Labels {
		if !gceLabelKey().MatchString(k) || !gceLabelValue().MatchString(v) {
			return invalid("labels", k+"="+v)
		}
	}
	if k := slices.IndexFunc(i.Tags.Items, func(tag string) bool { return !gceName().MatchString(tag) }); k >= 0 {
		return invalid("tags.items", i.Tags.Items[k])
	}
	return g.attachInterface(zone, &i.NetworkInterfaces[0])
}

// gceHyperdiskType ends the type of a disk that A3 Ultra machines boot from. They support no Persistent Disk
// (https://cloud.google.com/compute/docs/accelerator-optimized-machines, November 2026).
const gceHyperdiskType = "/hyperdisk-balanced"

// checkScheduling rejects scheduling options that the machine type or the provisioning model does not
// support.
func checkScheduling(kind string, s GCEScheduling, nic, disk string) *gceError {
	invalid := func(text string) *gceError { return newGCEError(http.StatusBadRequest, "invalid", "%s", text) }
	spot, flex, a3 := s.ProvisioningModel == gceSpot, s.ProvisioningModel == gceFlexStart, strings.HasPrefix(kind, "a3-")
	switch {
	case spot && (s.AutomaticRestart == nil || *s.AutomaticRestart):
		return invalid("Scheduling.automaticRestart must be false for spot instances")
	case spot && s.OnHostMaintenance != "TERMINATE":
		return invalid("Scheduling.onHostMaintenance must be TERMINATE for spot instances")
	case gceMachines[kind].accelerators > 0 && s.OnHostMaintenance != "TERMINATE":
		return invalid("Instances with guest accelerators do not support live migration")
	case a3 && nic != "GVNIC":
		return invalid("The network interface of machine type " + kind + " must be of type GVNIC")
	case gceMachines[kind].accelerator == gceH200 && !strings.HasSuffix(disk, gceHyperdiskType):
		return invalid("[" + path.Base(disk) + "] features are not compatible for creating instance: machine type " + kind + " requires a Hyperdisk")
	case a3 && kind != "a3-highgpu-8g" && !spot && !flex:
		return invalid("Machine type " + kind + " requires the provisioning model SPOT or FLEX_START")
	}
	return nil
}

func (g *GCE) insertInstance(r *http.Request) (any, *gceError) {
	if op := g.repeatedOperation(r); op != nil {
		return op, nil
	}
	zone := r.PathValue("zone")
	if fail := g.checkZone(zone); fail != nil {
		return nil, fail
	}
	var i GCEInstance
	if fail := decodeGCE(r, &i); fail != nil {
		return nil, fail
	}
	if fail := g.checkInsertPermissions(r, zone, i); fail != nil {
		return nil, fail
	}
	if fail := g.checkInstance(zone, &i); fail != nil {
		return nil, fail
	}
	target := "zones/" + zone + "/instances/" + i.Name
	i.Zone = g.link("zones/" + zone)
	if _, ok := g.instances.get(i.key()); ok {
		return nil, newGCEError(http.StatusConflict, "alreadyExists", "The resource 'projects/%s/%s' already exists", g.project, target)
	}
	i.Kind, i.ID, i.SelfLink, i.Status = "compute#instance", g.nextNumber(), g.link(target), gceProvisioning
	i.number, i.creator = g.lastNumber, callerAccount(r)
	i.MachineType, i.Params = g.link(i.MachineType), nil
	i.Created = g.now().Format(time.RFC3339Nano)
	g.instances.addObject(i.key(), i, g.faults.StaleLists)
	op := g.startOperation(r, zone, "insert", target, func() *GCEFailure { return g.finishInsert(i.key()) })
	op.TargetID = i.ID
	return op, nil
}

// finishInsert completes the creation of an instance: it runs, or it fails and is removed.
func (g *GCE) finishInsert(key string) *GCEFailure {
	i, ok := g.instances.get(key)
	if !ok || i.Status != gceProvisioning {
		return nil
	}
	if i.model() == gceFlexStart && g.flexWait > 0 {
		g.waitForCapacity(i)
		return nil
	}
	if failure := g.startFailure(i); failure != nil {
		if failure.KeepInstance {
			i.Status = gceTerminated
			g.instances.setObject(key, i)
		} else {
			g.instances.removeObject(key, 0)
		}
		return failure
	}
	g.runInstance(i)
	return nil
}

// startFailure returns the error with which an instance does not start; nil if it starts.
func (g *GCE) startFailure(i GCEInstance) *GCEFailure {
	if failure := g.checkActAs(i); failure != nil {
		return failure
	}
	return g.reserveCapacity(i)
}

// boot assigns addresses to a machine and starts its programs.
func (g *GCE) boot(i *GCEInstance) {
	public, private := fmt.Sprintf("203.0.%d.%d", i.number/250%250, 1+i.number%250), fmt.Sprintf("10.128.%d.%d", i.number/250%250, 1+i.number%250)
	if g.AssignAddresses != nil {
		public, private = g.AssignAddresses(i.number)
	}
	i.NetworkInterfaces = slices.Clone(i.NetworkInterfaces)
	nic := &i.NetworkInterfaces[0]
	nic.NetworkIP, nic.AccessConfigs = private, slices.Clone(nic.AccessConfigs)
	for k := range nic.AccessConfigs {
		nic.AccessConfigs[k].NatIP = public
	}
	if g.BootMachine == nil {
		return
	}
	m := BootingMachine{ID: i.Name, Region: gceRegion(path.Base(i.Zone)), Private: private, Tags: maps.Clone(i.Labels)}
	for _, item := range i.Metadata.Items {
		if item.Key == "user-data" {
			m.UserData = item.Value
		}
	}
	i.stop = g.BootMachine(m)
}

// stopPrograms ends the programs of a machine.
func (i *GCEInstance) stopPrograms() {
	if i.stop != nil {
		i.stop()
		i.stop = nil
	}
}

// findInstance returns the instance in the path of a request.
func (g *GCE) findInstance(r *http.Request) (GCEInstance, *gceError) {
	zone, name := r.PathValue("zone"), r.PathValue("name")
	i, ok := g.instances.get(zone + "/" + name)
	if !ok {
		return i, newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s/zones/%s/instances/%s' was not found", g.project, zone, name)
	}
	return i, nil
}

func (g *GCE) getInstance(r *http.Request) (any, *gceError) {
	i, fail := g.findInstance(r)
	return i, fail
}

// setMetadata replaces the metadata of an instance. Its startup script runs as root at the next boot.
func (g *GCE) setMetadata(r *http.Request) (any, *gceError) {
	i, fail := g.findInstance(r)
	if fail != nil {
		return nil, fail
	}
	var m struct {
		GCEMetadata
		Fingerprint string `json:"fingerprint"`
	}
	if fail := decodeGCE(r, &m); fail != nil {
		return nil, fail
	}
	i.Metadata = m.GCEMetadata
	g.instances.setObject(i.key(), i)
	zone := path.Base(i.Zone)
	return g.startOperation(r, zone, "setMetadata", "zones/"+zone+"/instances/"+i.Name, func() *GCEFailure { return nil }), nil
}

// getGuestAttributes returns one of the guest attributes that an instance wrote.
func (g *GCE) getGuestAttributes(r *http.Request) (any, *gceError) {
	i, fail := g.findInstance(r)
	if fail != nil {
		return nil, fail
	}
	at := r.FormValue("queryPath")
	value, ok := i.guest[at]
	if !ok {
		return nil, newGCEError(http.StatusNotFound, "notFound", "The resource '%s' of type 'Guest Attribute' was not found.", at)
	}
	namespace, key, _ := strings.Cut(at, "/")
	item := map[string]string{"namespace": namespace, "key": key, "value": value}
	return map[string]any{"kind": "compute#guestAttributes", "queryPath": at, "queryValue": map[string]any{"items": []any{item}}}, nil
}

func (g *GCE) deleteInstance(r *http.Request) (any, *gceError) {
	if op := g.repeatedOperation(r); op != nil {
		return op, nil
	}
	i, fail := g.findInstance(r)
	if fail != nil {
		return nil, fail
	}
	target := "zones/" + path.Base(i.Zone) + "/instances/" + i.Name
	if fail := g.checkReady(target); fail != nil {
		return nil, fail
	}
	i.stopPrograms()
	i.Status = gceStopping
	g.instances.setObject(i.key(), i)
	return g.startOperation(r, path.Base(i.Zone), "delete", target, func() *GCEFailure {
		g.instances.removeObject(i.key(), g.faults.StaleLists)
		return nil
	}), nil
}

func (g *GCE) listInstances(r *http.Request) (any, *gceError) {
	passes, fail := gceFilter(r.FormValue("filter"))
	if fail != nil {
		return nil, fail
	}
	var all []GCEInstance
	for _, i := range g.instances.listObjects() {
		if passes(i.field) && path.Base(i.Zone) != g.silentZone {
			all = append(all, i)
		}
	}
	page, next, fail := gcePage(r, all, g.pageSize)
	scopes := map[string]map[string]any{}
	for _, zones := range gceZones {
		for _, zone := range zones {
			scopes["zones/"+zone] = map[string]any{"warning": map[string]string{"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope 'zones/" + zone + "' on this page."}}
		}
	}
	if g.silentZone != "" {
		scopes["zones/"+g.silentZone] = map[string]any{"warning": map[string]string{"code": g.silenceCode, "message": "The zone is unreachable."}}
	}
	for _, i := range page {
		zone := "zones/" + path.Base(i.Zone)
		instances, _ := scopes[zone]["instances"].([]GCEInstance)
		scopes[zone] = map[string]any{"instances": append(instances, i)}
	}
	return map[string]any{"kind": "compute#instanceAggregatedList", "items": scopes, "nextPageToken": next}, fail
}
