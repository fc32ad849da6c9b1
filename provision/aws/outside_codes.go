package aws

import "skyserve/provision"

// The codes of AWS's errors, with which this package decides what to do.
//
// Sources: EC2's codes are in "Error codes for the Amazon EC2 API",
// docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html. Its list of codes that all actions return
// was read in November 2026; that its list by action still contains the others is assumed. The codes of IAM, S3 and
// Service Quotas are those of AWS's SDK (service/*/types/errors.go, November 2026), except NoSuchTagSet,
// NoSuchPublicAccessBlockConfiguration and BucketNotEmpty, of "Error responses" in the Amazon S3 API Reference
// (not checked in November 2026).

// capacityScopes maps EC2's codes for an unavailable offering to the scope of each.
var capacityScopes = map[string]provision.CapacityScope{
	"InsufficientInstanceCapacity":          provision.ScopeZone,
	"InsufficientHostCapacity":              provision.ScopeZone,
	"InsufficientCapacity":                  provision.ScopeZone,
	"InsufficientReservedInstanceCapacity":  provision.ScopeZone,
	"UnfulfillableCapacity":                 provision.ScopeZone,
	"ReservationCapacityExceeded":           provision.ScopeZone,
	"InvalidCapacityReservationState":       provision.ScopeZone, // it ended since it was read
	"InvalidCapacityReservationId.NotFound": provision.ScopeZone,
	"InsufficientFreeAddressesInSubnet":     provision.ScopeZone,
	"InsufficientAddressCapacity":           provision.ScopeZone,
	"InsufficientVolumeCapacity":            provision.ScopeZone,
	"Unsupported":                           provision.ScopeZone,
	"SpotMaxPriceTooLow":                    provision.ScopeZone,
	"MaxSpotInstanceCountExceeded":          provision.ScopeQuota,
	"MaxFleetCountExceeded":                 provision.ScopeQuota,
	"VcpuLimitExceeded":                     provision.ScopeQuota,
	"InstanceLimitExceeded":                 provision.ScopeQuota,
	"VolumeLimitExceeded":                   provision.ScopeQuota,
	"MaxIOPSLimitExceeded":                  provision.ScopeQuota,
	"NetworkInterfaceLimitExceeded":         provision.ScopeQuota,
}

// startFailureScopes maps the state codes of a machine that EC2 accepted but failed to start to the scope
// of each.
var startFailureScopes = map[string]provision.CapacityScope{
	"Server.InsufficientInstanceCapacity": provision.ScopeZone,
	"Server.InternalError":                provision.ScopeZone,
	"Client.VolumeLimitExceeded":          provision.ScopeQuota,
}

// permanentStartFailures maps the state codes of start failures that do not depend on the offering to a
// hint.
var permanentStartFailures = map[string]string{
	"Client.InternalError":            "allow EC2, and for spot the role AWSServiceRoleForEC2Spot, to use the KMS key that encrypts the disks",
	"Client.InvalidSnapshot.NotFound": "the snapshot of the image does not exist; use another image",
}

// codeNoSpotRole is EC2's code for the first spot machine of an AWS account if the caller has no
// permission to create the service-linked role that EC2 requires for spot.
const codeNoSpotRole = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"

// credentialHints maps the codes of missing, invalid or expired credentials to a hint.
var credentialHints = map[string]string{
	"AuthFailure":                 "check the access keys; if they work in other regions, enable this region for the AWS account",
	"UnrecognizedClientException": "check the access keys; if they work in other regions, enable this region for the AWS account",
	"InvalidClientTokenId":        "check the access key: aws sts get-caller-identity",
	"SignatureDoesNotMatch":       "check the secret key, and this machine's clock",
	"InvalidSignatureException":   "check the secret key, and this machine's clock",
	"IncompleteSignature":         "check the secret key",
	"MissingAuthenticationToken":  "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
	"ExpiredToken":                "log in again: aws sso login, or fetch new session keys",
	"ExpiredTokenException":       "log in again: aws sso login, or fetch new session keys",
	"RequestExpired":              "correct this machine's clock, or log in again: aws sso login",
	"OptInRequired":               "complete the sign-up of the AWS account for this AWS service in the AWS console",
	"PendingVerification":         "wait until AWS has verified the AWS account for this region: AWS sends an email",
	codeNoSpotRole:                "create the service-linked role for spot once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
	"Blocked":                     "AWS has blocked the AWS account; contact AWS support",
}

// deniedCodes are the codes for an authenticated caller without permission for the call.
var deniedCodes = []string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "UnauthorizedException", codeDeniedParameter}

// The codes of security groups, subnets, networks and machines, and of idempotent launches.
const (
	codeNoGroup            = "InvalidGroup.NotFound"
	codeGroupExists        = "InvalidGroup.Duplicate"
	codeGroupInUse         = "InvalidGroup.InUse"
	codeDependency         = "DependencyViolation"
	codeRuleExists         = "InvalidPermission.Duplicate"
	codeNoRule             = "InvalidPermission.NotFound"
	codeNoSubnet           = "InvalidSubnetID.NotFound"
	codeNoNetwork          = "InvalidVpcID.NotFound"
	codeNoInstance         = "InvalidInstanceID.NotFound"
	codeTokenOfEnded       = "IdempotentInstanceTerminated"
	codeTokenOfAnotherCall = "IdempotentParameterMismatch"
)

// codeMaxConfigs is EC2's error code for too many different requests for scores within 24 hours. It does
// not count a request that repeats one.
const codeMaxConfigs = "MaxConfigLimitExceeded"

// IAM's error codes.
const (
	codeExists   = "EntityAlreadyExists"
	codeNoEntity = "NoSuchEntity"
	codeConflict = "DeleteConflict" // another IAM object refers to it
	codeLimit    = "LimitExceeded"
	codeRace     = "ConcurrentModification" // two concurrent changes of one IAM object
)

// codeNoQuota is Service Quotas' code for an unknown quota.
const codeNoQuota = "NoSuchResourceException"

// S3's error codes.
const (
	codeBucketTaken   = "BucketAlreadyExists"
	codeBucketOwned   = "BucketAlreadyOwnedByYou"
	codeNoBucket      = "NoSuchBucket"
	codeNoKey         = "NoSuchKey"
	codeBucketFull    = "BucketNotEmpty"
	codeNoTags        = "NoSuchTagSet"
	codeNoPublicBlock = "NoSuchPublicAccessBlockConfiguration"
	codeNoObject      = "NotFound" // of a response without a body
)

// EC2's codes for a launch whose image cannot be used: the first three if the launch named a parameter, the next three if
// it named an image id. The last three constants are for dry runs and for instance profiles that EC2 does not know yet.
//
// EC2 answers SsmInvalidParameter both for a parameter that does not exist ("The following aliases are
// invalid: ...") and for one whose data type is not aws:ec2:image (github.com/aws/aws-cdk/issues/26712), and
// SsmAccessDenied for a caller without ssm:GetParameters. Other calls of AWS use ParameterNotFound. The
// codes of images are in "Error codes for the Amazon EC2 API". Read in November 2026.
const (
	codeBadParameter      = "SsmInvalidParameter"
	codeNoParameter       = "ParameterNotFound"
	codeDeniedParameter   = "SsmAccessDenied"
	codeNoImage           = "InvalidAMIID.NotFound"
	codeUnavailableImage  = "InvalidAMIID.Unavailable"
	codeMalformedImage    = "InvalidAMIID.Malformed"
	codeDryRunSucceeded   = "DryRunOperation"
	codeInvalidParameter  = "InvalidParameterValue"
	textNoInstanceProfile = "IAM Instance Profile"
)
