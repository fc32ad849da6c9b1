package testcloud

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// GCE emulates Compute Engine's JSON API, v1, for one project: instances, firewalls and their operations. It
// also emulates Cloud Storage, the price list of Cloud Billing, and the methods of other APIs that skyserve calls. It rejects
// unknown fields, so that a misspelled field fails a test.
//
// Every call advances the running operations by one step. A call with a service account's token, from
// MachineCredentials, is authorized by the IAM roles of the service account and their conditions. Any other
// call is the operator's. GCE is safe for concurrent use; set the fields before the first call.
type GCE struct {
	// AssignAddresses and BootMachine are as in AWS. BootMachine is called for every machine that starts, and
	// the function that it returns when the machine stops or is deleted.
	AssignAddresses func(n int) (public, private string)
	BootMachine     func(m BootingMachine) (off func())
	// Now is the cloud's clock, which its responses report; nil = time.Now.
	Now func() time.Time

	// VerifyAWS sends a signed request to AWS and returns the identity that it proves; nil = AWS does not respond.
	VerifyAWS func(r *http.Request) (arn, account string, err error)

	faults  *Faults
	project string
	mux     *http.ServeMux

	mu              sync.Mutex // guards the fields below
	calls           int        // the clock of operations
	lastNumber      int        // the last id
	instances       gceStore[GCEInstance]
	firewalls       gceStore[GCEFirewall]
	operations      map[string]*gceOperation
	requests        map[string]string // request id -> name of the operation that it started
	steps           int
	flexWait        int // calls for which flex-start machines are pending
	pageSize        int
	networks        map[string]gceNetwork
	token           string
	account         string
	roles           map[string][]string     // permissions by IAM role
	policy          map[string][]gceBinding // IAM roles by service account
	users           map[string][]string     // by service account: the service accounts that may act as it
	allowed         []string                // the only permissions of the operator; nil = all except denied
	silentZone      string                  // the zone that lists omit
	silenceCode     string                  // the warning code for it
	denied          []string                // permissions that the operator does not have
	refusals        map[string]*gceError    // by action
	failures        map[string]GCEFailure   // how operations of an action end
	stock           map[gceStock]int        // remaining machines; without an entry unlimited
	limits          map[gceLimit]float64    // quotas
	missingTypes    map[string][]string     // machine types that a zone does not have
	images          map[string]gceImage     // of the project, by name
	missingFamilies []string                // removed public image families
	missingGPUs     []string                // ZONE/GPU that a zone does not have
	reserved        []GCEReserved
	skus            []GCESKU // the price list
	buckets         map[string]*gcsBucket
	foreignBuckets  map[string]bool              // names of buckets of other projects
	uploads         map[string]*gcsUploadSession // by upload id
	retained        int                          // deleted objects of buckets with soft delete
	policyDelay     int
	pools           map[string]gcePool    // workload identity pools, by id
	federated       map[string][]string   // members that may act as a service account
	advice          map[[2]string]float64 // obtainability by zone and machine type
}

// NewGCE returns a project with the regions of gceZones, a network named default in automatic mode, high
// quotas, and no other resources. A nil Faults serves every call.
func NewGCE(project string, faults *Faults) *GCE {
	if faults == nil {
		faults = &Faults{}
	}
	g := &GCE{
		faults: faults, project: project, mux: http.NewServeMux(), steps: 1,
		operations: map[string]*gceOperation{}, requests: map[string]string{},
		networks: map[string]gceNetwork{"default": {}}, account: "1234-compute@developer.gserviceaccount.com",
		roles: map[string][]string{
			"roles/editor":               gceKnownPermissions(),
			"roles/storage.objectViewer": {"storage.objects.get", "storage.objects.list"},
			"roles/storage.objectUser":   {"storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list", "storage.objects.update"},
		},
		policy: map[string][]gceBinding{"1234-compute@developer.gserviceaccount.com": {{role: "roles/editor"}}}, users: map[string][]string{},
		pools: map[string]gcePool{}, federated: map[string][]string{},
		refusals: map[string]*gceError{}, failures: map[string]GCEFailure{},
		stock: map[gceStock]int{}, limits: map[gceLimit]float64{}, missingTypes: map[string][]string{},
		images: map[string]gceImage{},
		skus:   gceSKUs(), advice: map[[2]string]float64{},
		buckets: map[string]*gcsBucket{}, foreignBuckets: map[string]bool{}, uploads: map[string]*gcsUploadSession{},
	}
	for _, route := range slices.Concat(gceRoutes, gcsRoutes) {
		g.mux.HandleFunc(route.pattern, func(w http.ResponseWriter, r *http.Request) { g.handle(w, r, route) })
	}
	g.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		newGCEError(http.StatusNotFound, "notFound", "not emulated: %s %s", r.Method, r.URL.Path).write(w)
	})
	return g
}

// gceRoute is one method of the API.
type gceRoute struct {
	action  string
	pattern string
	serve   func(g *GCE, r *http.Request) (any, *gceError)
}

// gceInsert is the action that creates an instance.
const gceInsert = "compute.instances.insert"

// gceListSKUs is the only action that does not refer to the project.
const gceListSKUs = "cloudbilling.services.skus.list"

const gceProject = "/compute/v1/projects/{project}"

var gceRoutes = []gceRoute{
	{"compute.projects.get", "GET " + gceProject, (*GCE).getProject},
	{"compute.regions.get", "GET " + gceProject + "/regions/{region}", (*GCE).getRegion},
	{"compute.advice.capacity", "POST " + gceProject + "/regions/{region}/advice/capacity", (*GCE).adviseCapacity},
	{"compute.machineTypes.list", "GET " + gceProject + "/zones/{zone}/machineTypes", (*GCE).listMachineTypes},
	{"compute.networks.get", "GET " + gceProject + "/global/networks/{name}", (*GCE).getNetwork},
	{"compute.subnetworks.get", "GET " + gceProject + "/regions/{region}/subnetworks/{name}", (*GCE).getSubnet},
	{"compute.acceleratorTypes.get", "GET " + gceProject + "/zones/{zone}/acceleratorTypes/{name}", (*GCE).getAcceleratorType},
	{"compute.reservations.get", "GET " + gceProject + "/zones/{zone}/reservations/{name}", (*GCE).getReservation},
	{"compute.images.get", "GET " + gceProject + "/global/images/{name}", (*GCE).getImage},
	{"compute.images.getFromFamily", "GET " + gceProject + "/global/images/family/{name}", (*GCE).getImageFamily},
	{gceInsert, "POST " + gceProject + "/zones/{zone}/instances", (*GCE).insertInstance},
	{"compute.instances.get", "GET " + gceProject + "/zones/{zone}/instances/{name}", (*GCE).getInstance},
	{"compute.instances.delete", "DELETE " + gceProject + "/zones/{zone}/instances/{name}", (*GCE).deleteInstance},
	{"compute.instances.setMetadata", "POST " + gceProject + "/zones/{zone}/instances/{name}/setMetadata", (*GCE).setMetadata},
	{"compute.instances.getGuestAttributes", "GET " + gceProject + "/zones/{zone}/instances/{name}/getGuestAttributes", (*GCE).getGuestAttributes},
	{"compute.instances.aggregatedList", "GET " + gceProject + "/aggregated/instances", (*GCE).listInstances},
	{"compute.zoneOperations.get", "GET " + gceProject + "/zones/{zone}/operations/{name}", (*GCE).getOperation},
	{"compute.firewalls.insert", "POST " + gceProject + "/global/firewalls", (*GCE).insertFirewall},
	{"compute.firewalls.list", "GET " + gceProject + "/global/firewalls", (*GCE).listFirewalls},
	{"compute.firewalls.get", "GET " + gceProject + "/global/firewalls/{name}", (*GCE).getFirewall},
	{"compute.firewalls.update", "PUT " + gceProject + "/global/firewalls/{name}", (*GCE).updateFirewall},
	{"compute.firewalls.delete", "DELETE " + gceProject + "/global/firewalls/{name}", (*GCE).deleteFirewall},
	{"compute.globalOperations.get", "GET " + gceProject + "/global/operations/{name}", (*GCE).getOperation},
	{gceListSKUs, "GET /v1/services/{service}/skus", (*GCE).listSKUs},
	{"resourcemanager.projects.testIamPermissions", "POST /v1/projects/{verb}", (*GCE).handleProjectVerb},
	{"iam.serviceAccounts.testIamPermissions", "POST /v1/projects/{anywhere}/serviceAccounts/{account}", (*GCE).handleAccountVerb},
	{"resourcemanager.projects.get", "GET /v1/projects/{verb}", (*GCE).getProjectNumber},
	{"iam.serviceAccounts.get", "GET /v1/projects/{anywhere}/serviceAccounts/{account}", (*GCE).getServiceAccount},
	{"iam.workloadIdentityPoolProviders.get", "GET /v1/projects/{anywhere}/locations/global/workloadIdentityPools/{pool}/providers/{name}", (*GCE).getPoolProvider},
	{"sts.token", "POST /v1/token", (*GCE).exchangeToken},
	{"iam.roles.get", "GET /v1/roles/{role}", (*GCE).getRole},
	{"iam.roles.get", "GET /v1/projects/{anywhere}/roles/{role}", (*GCE).getRole},
}

// ServeHTTP serves one request.
func (g *GCE) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.mux.ServeHTTP(w, r) }

// handle serves one call with the outcome that Faults decides.
func (g *GCE) handle(w http.ResponseWriter, r *http.Request, route gceRoute) {
	outcome, end := g.faults.BeginCall(Call{
		Cloud: "gcp", Region: gceRegionOf(r), Action: route.action, ReadOnly: r.Method == http.MethodGet,
	})
	defer end()
	var fail *gceError
	var reply gceReply
	switch outcome {
	case RequestLost:
		DropConnection()
	case Throttled:
		fail = newGCEError(http.StatusForbidden, "rateLimitExceeded", "Quota exceeded for quota group 'default' and limit 'Queries per 100 seconds'")
	case InternalError:
		fail = newGCEError(http.StatusServiceUnavailable, "backendError", "Internal error. Please try again or contact Google Support.")
	default:
		reply, fail = g.execute(r, route)
	}
	switch {
	case outcome == ResponseLost:
		DropConnection()
	case fail != nil:
		g.writeDate(w)
		fail.write(w)
	default:
		g.writeDate(w)
		for key, value := range reply.header {
			w.Header().Set(key, value)
		}
		writeGCE(w, reply.status, reply.body)
	}
}

// writeDate sets the Date header of a response.
func (g *GCE) writeDate(w http.ResponseWriter) {
	w.Header().Set("Date", g.now().UTC().Format(http.TimeFormat))
}

// rejectGetBody rejects a GET with a body, like Google's front end.
func rejectGetBody(r *http.Request) *gceError {
	if r.Method == http.MethodGet && r.ContentLength > 0 {
		return newGCEError(http.StatusBadRequest, "badRequest", "Your client has issued a malformed or illegal request.")
	}
	return nil
}

// execute advances the operations and executes a call, if the caller is authorized. It encodes the
// reply under the lock, because the objects in it may change later.
func (g *GCE) execute(r *http.Request, route gceRoute) (gceReply, *gceError) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	g.advance()
	if fail := rejectGetBody(r); fail != nil {
		return gceReply{}, fail
	}
	if fail := g.checkRequest(r, route); fail != nil {
		return gceReply{}, fail
	}
	reply, fail := route.serve(g, r)
	if fail != nil {
		return gceReply{}, fail
	}
	if whole, ok := reply.(gceReply); ok {
		return whole, nil
	}
	if fields, ok := reply.(map[string]any); ok {
		reply = withoutEmpty(fields)
	}
	return gceReply{status: http.StatusOK, body: identify(r, gceJSON(reply))}, nil
}

// gceReply is a response that is not only JSON.
type gceReply struct {
	status int
	header map[string]string
	body   []byte
}

// withoutEmpty returns a reply without its empty lists and texts, which Google's JSON omits.
func withoutEmpty(fields map[string]any) map[string]any {
	filled := maps.Clone(fields)
	maps.DeleteFunc(filled, func(_ string, v any) bool {
		field := reflect.ValueOf(v)
		return !field.IsValid() || (field.Kind() == reflect.Slice || field.Kind() == reflect.String) && field.Len() == 0
	})
	return filled
}

// checkRequest checks the caller, the project and the permission of a request, and applies FailCalls.
func (g *GCE) checkRequest(r *http.Request, route gceRoute) *gceError {
	if g.token != "" && r.Header.Get("Authorization") != "Bearer "+g.token {
		return newGCEError(http.StatusUnauthorized, "authError", "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential.")
	}
	project, _, _ := strings.Cut(cmp.Or(r.PathValue("project"), r.PathValue("verb")), ":")
	if project != "" && project != g.project && !strings.Contains(r.URL.Path, "/images/") && !strings.Contains(r.URL.Path, "/reservations/") {
		return newGCEError(http.StatusNotFound, "notFound", "The resource 'projects/%s' was not found", project)
	}
	if strings.HasPrefix(route.action, "compute.") && route.action != gceInsert { // its resource is in the body
		if fail := g.require(r, g.requestedResource(r), gcePermission(route.action)); fail != nil {
			return fail
		}
	}
	return g.refusals[route.action]
}

// gceRegionOf returns the region in a path; empty = none.
func gceRegionOf(r *http.Request) string {
	if zone := r.PathValue("zone"); zone != "" {
		return gceRegion(zone)
	}
	return r.PathValue("region")
}

// gceRegion returns the region of a zone: us-central1 for us-central1-a.
func gceRegion(zone string) string { return zone[:max(0, strings.LastIndex(zone, "-"))] }

func (g *GCE) now() time.Time {
	if g.Now == nil {
		return time.Now()
	}
	return g.Now()
}

// link returns the URL of a resource of the project.
func (g *GCE) link(path string) string {
	return gceRoot + "projects/" + g.project + "/" + path
}

// nextNumber returns the next id.
func (g *GCE) nextNumber() string {
	g.lastNumber++
	return fmt.Sprint(1000 + g.lastNumber)
}

// gceError is an error in Google's JSON.
type gceError struct {
	status  int
	reason  string
	message string
}

func newGCEError(status int, reason, format string, args ...any) *gceError {
	return &gceError{status, reason, fmt.Sprintf(format, args...)}
}

func (e *gceError) write(w http.ResponseWriter) {
	writeGCE(w, e.status, gceJSON(map[string]any{"error": map[string]any{
		"code": e.status, "message": e.message,
		"errors": []map[string]string{{"message": e.message, "domain": "global", "reason": e.reason}},
	}}))
}

// gceJSON encodes a response as JSON. It panics on an error, because every response of the emulation can be
// encoded.
func gceJSON(reply any) []byte {
	text, err := json.Marshal(reply)
	if err != nil {
		panic(fmt.Sprintf("testcloud: encoding %T as JSON: %v", reply, err))
	}
	return text
}

func writeGCE(w http.ResponseWriter, status int, text []byte) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	}
	w.WriteHeader(status)
	w.Write(text) //nolint:errcheck // the caller may have disconnected
}

// decodeGCE decodes a body and rejects unknown fields.
func decodeGCE(r *http.Request, into any) *gceError {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return newGCEError(http.StatusBadRequest, "invalid", "Invalid JSON payload received: %v", err)
	}
	return nil
}
