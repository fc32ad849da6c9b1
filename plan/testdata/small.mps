* columns: s_i_j_k = replicas kept, a_i_j_k = replicas added
* i=0: m
* j=0: us
* j=1: eu
* k=0: L4
NAME skyserve_plan
ROWS
 N cost
 G local_0_0
 G min_0_0
 G local_0_1
 L max_0_1
 G global_0
 L capacity_0_0
COLUMNS
 M1 'MARKER' 'INTORG'
 s_0_0_0 cost 0.8
 s_0_0_0 local_0_0 1000
 s_0_0_0 min_0_0 1
 s_0_0_0 global_0 1000
 s_0_0_0 capacity_0_0 1
 a_0_0_0 cost 0.9
 a_0_0_0 local_0_0 1000
 a_0_0_0 min_0_0 1
 a_0_0_0 global_0 1000
 a_0_0_0 capacity_0_0 1
 s_0_1_0 cost 0.8
 s_0_1_0 local_0_1 1000
 s_0_1_0 max_0_1 1
 s_0_1_0 global_0 1000
 a_0_1_0 cost 0.9
 a_0_1_0 local_0_1 1000
 a_0_1_0 max_0_1 1
 a_0_1_0 global_0 1000
 M2 'MARKER' 'INTEND'
RHS
 rhs local_0_0 2940
 rhs min_0_0 1
 rhs local_0_1 2940
 rhs max_0_1 7
 rhs global_0 4200
 rhs capacity_0_0 9
BOUNDS
 UP bnd s_0_0_0 2
 PL bnd a_0_0_0
 UP bnd s_0_1_0 0
 PL bnd a_0_1_0
ENDATA
