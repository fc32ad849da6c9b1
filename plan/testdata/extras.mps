* columns: s_i_j_k = replicas kept, a_i_j_k = replicas added
* t_i_j_k = replicas on VMs taken over from another model
* o_i_j_w = load sent to other regions in window w, tokens per second
* i=0: m
* j=0: us
* j=1: eu
* k=0: L4
NAME skyserve_plan
ROWS
 N cost
 G local_0_0
 G min_0_0
 G forwarded_0_0_0
 G forwarded_0_0_1
 G local_0_1
 L max_0_1
 G min_total_0
 L max_total_0
 G cover_0_0
 G cover_0_1
 L capacity_0_0
 L running_vms_0_0
 L running_vms_1_0
COLUMNS
 M1 'MARKER' 'INTORG'
 s_0_0_0 cost 0.8
 s_0_0_0 local_0_0 1000
 s_0_0_0 min_0_0 1
 s_0_0_0 forwarded_0_0_0 1000
 s_0_0_0 forwarded_0_0_1 1000
 s_0_0_0 min_total_0 1
 s_0_0_0 max_total_0 1
 s_0_0_0 cover_0_1 1000
 s_0_0_0 capacity_0_0 1
 s_0_0_0 running_vms_0_0 1
 t_0_0_0 cost 0.8200000000000001
 t_0_0_0 local_0_0 1000
 t_0_0_0 min_0_0 1
 t_0_0_0 forwarded_0_0_0 1000
 t_0_0_0 forwarded_0_0_1 1000
 t_0_0_0 min_total_0 1
 t_0_0_0 max_total_0 1
 t_0_0_0 cover_0_1 1000
 t_0_0_0 capacity_0_0 1
 t_0_0_0 running_vms_0_0 1
 a_0_0_0 cost 0.9
 a_0_0_0 local_0_0 1000
 a_0_0_0 min_0_0 1
 a_0_0_0 forwarded_0_0_0 1000
 a_0_0_0 forwarded_0_0_1 1000
 a_0_0_0 min_total_0 1
 a_0_0_0 max_total_0 1
 a_0_0_0 cover_0_1 1000
 a_0_0_0 capacity_0_0 1
 s_0_1_0 cost 0.8
 s_0_1_0 local_0_1 1000
 s_0_1_0 max_0_1 1
 s_0_1_0 min_total_0 1
 s_0_1_0 max_total_0 1
 s_0_1_0 cover_0_0 1000
 s_0_1_0 running_vms_1_0 1
 t_0_1_0 cost 0.8200000000000001
 t_0_1_0 local_0_1 1000
 t_0_1_0 max_0_1 1
 t_0_1_0 min_total_0 1
 t_0_1_0 max_total_0 1
 t_0_1_0 cover_0_0 1000
 t_0_1_0 running_vms_1_0 1
 a_0_1_0 cost 0.9
 a_0_1_0 local_0_1 1000
 a_0_1_0 max_0_1 1
 a_0_1_0 min_total_0 1
 a_0_1_0 max_total_0 1
 a_0_1_0 cover_0_0 1000
 M2 'MARKER' 'INTEND'
 o_0_0_0 cost 0.00018
 o_0_0_0 forwarded_0_0_0 1
 o_0_0_1 cost 0.00018
 o_0_0_1 forwarded_0_0_1 1
RHS
 rhs local_0_0 2940
 rhs min_0_0 1
 rhs forwarded_0_0_0 4200
 rhs forwarded_0_0_1 0
 rhs local_0_1 2940
 rhs max_0_1 7
 rhs min_total_0 2
 rhs max_total_0 20
 rhs cover_0_0 4200
 rhs cover_0_1 4200
 rhs capacity_0_0 9
 rhs running_vms_0_0 2
 rhs running_vms_1_0 0
BOUNDS
 UP bnd s_0_0_0 2
 PL bnd t_0_0_0
 PL bnd a_0_0_0
 UP bnd s_0_1_0 0
 PL bnd t_0_1_0
 PL bnd a_0_1_0
 PL bnd o_0_0_0
 PL bnd o_0_0_1
ENDATA
